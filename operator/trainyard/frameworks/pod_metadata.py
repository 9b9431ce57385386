"""Labels and annotations by which autoscalers and service meshes leave workers alone. A value of the user wins. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ANNOTATIONS: Mapping[str, str] = MappingProxyType(
    {
        # Autoscalers and deschedulers: each eviction costs the whole group a restart.
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
        # Meshes: a proxy intercepts the traffic between ranks, and keeps the pod from completing.
        "sidecar.istio.io/inject": "false",
        "linkerd.io/inject": "disabled",
        "consul.hashicorp.com/connect-inject": "false",
    }
)
LABELS: Mapping[str, str] = MappingProxyType(
    {
        # Istio reads either, and the label wins.
        "sidecar.istio.io/inject": "false",
        "istio.io/dataplane-mode": "none",
        "kuma.io/sidecar-injection": "disabled",
    }
)
REQUESTS: Mapping[str, str] = MappingProxyType(
    {
        # Istio with revisions: our `inject` would defeat it.
        "istio.io/rev": "sidecar.istio.io/inject",
        "istio.io/use-waypoint": "istio.io/dataplane-mode",
        "kuma.io/mesh": "kuma.io/sidecar-injection",
    }
)
"""Other names by which a user asks for a mesh, and our name that would refuse it."""


@dataclass(frozen=True, slots=True)
class PodMetadata:
    """The labels and annotations of every worker."""

    labels: Mapping[str, str] = field(default_factory=lambda: LABELS)
    annotations: Mapping[str, str] = field(default_factory=lambda: ANNOTATIONS)

    def overridden(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> "PodMetadata":
        """Return these with other ones added. A name in either of those replaces both our label and our annotation."""
        named = {*labels, *annotations}
        named |= {REQUESTS[name] for name in named & REQUESTS.keys()}
        return PodMetadata(
            {**{name: value for name, value in self.labels.items() if name not in named}, **labels},
            {**{name: value for name, value in self.annotations.items() if name not in named}, **annotations},
        )
