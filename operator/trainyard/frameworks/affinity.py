"""Where a worker may go: within what the user's own affinity allows. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from trainyard.api.constants import GROUP
from trainyard.api.status import Avoidance, SuspectNode
from trainyard.frameworks.worker_spec import Json

STRONGEST = 100
"""The greatest weight of a preference."""
RATHER = 50
SPOT: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        f"{GROUP}/capacity-type": ("spot",),
        "karpenter.sh/capacity-type": ("spot",),
        "eks.amazonaws.com/capacityType": ("SPOT",),
        "cloud.google.com/gke-spot": ("true",),
        "cloud.google.com/gke-preemptible": ("true",),
        "kubernetes.azure.com/scalesetpriority": ("spot",),
    }
)
"""Labels of nodes that their providers take back at short notice; the first one is for those who have none of the others."""
TAINTS = ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible", "kubernetes.azure.com/scalesetpriority")
"""Of these labels those that are taints of such nodes as well."""


def avoid(spec: Json, suspects: Iterable[SuspectNode]) -> None:
    """Keep a pod away from nodes, by their names: always, or where there is another place."""
    nodes = [*suspects]
    _require(spec, "matchFields", _all_but(node for node in nodes if node.avoidance is Avoidance.REQUIRED))
    if rather_not := _all_but(node for node in nodes if node.avoidance is Avoidance.PREFERRED):
        _prefer(spec, [{"weight": STRONGEST, "preference": {"matchFields": rather_not}}])


def on_demand(spec: Json) -> None:
    """Keep a pod away from spot nodes. A node without any of the labels is none."""
    _require(
        spec,
        "matchExpressions",
        [{"key": label, "operator": "NotIn", "values": [*values]} for label, values in SPOT.items()],
    )


def spot(spec: Json) -> None:
    """Have a pod go to spot nodes first."""
    labels = [{"key": label, "operator": "In", "values": [*values]} for label, values in SPOT.items()]
    _prefer(spec, [{"weight": RATHER, "preference": {"matchExpressions": [label]}} for label in labels])
    taints = [
        {"key": label, "operator": "Equal", "value": value, "effect": "NoSchedule"}
        for label in TAINTS
        for value in SPOT[label]
    ]
    spec["tolerations"] = [*(spec.get("tolerations") or []), *taints]


def _require(spec: Json, kind: str, matches: Sequence[Json]) -> None:
    """Any one of the user's terms suffices, and each is held to all of `matches`."""
    if not matches:
        return
    node_affinity = _node_affinity(spec)
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [{**term, kind: [*(term.get(kind) or []), *matches]} for term in required.get("nodeSelectorTerms") or [{}]]
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}


def _prefer(spec: Json, preferences: Sequence[Json]) -> None:
    node_affinity = _node_affinity(spec)
    preferred = node_affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    node_affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [*preferred, *preferences]


def _node_affinity(spec: Json) -> Json:
    """A copy of the template's, in its place."""
    affinity = spec["affinity"] = {**(spec.get("affinity") or {})}
    node_affinity: Json = {**(affinity.get("nodeAffinity") or {})}
    affinity["nodeAffinity"] = node_affinity
    return node_affinity


def _all_but(nodes: Iterable[SuspectNode]) -> list[Json]:
    # One name each: the API server takes no more.
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node.name]} for node in nodes]
