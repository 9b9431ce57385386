"""Restrict a pod to nodes, within what the user's own affinity allows. Pure: each function returns the changed pod
spec.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from trainyard.api.constants import GROUP
from trainyard.api.status import Avoidance, SuspectNode
from trainyard.frameworks.worker_spec import Json

AVOID_NODE_WEIGHT = 100
"""The maximum weight of a preference."""
SPOT_NODE_WEIGHT = 50
SPOT_LABELS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        f"{GROUP}/capacity-type": ("spot",),
        "karpenter.sh/capacity-type": ("spot",),
        "eks.amazonaws.com/capacityType": ("SPOT",),
        "cloud.google.com/gke-spot": ("true",),
        "cloud.google.com/gke-preemptible": ("true",),
        "kubernetes.azure.com/scalesetpriority": ("spot",),
    }
)
"""Labels of nodes that their provider takes back at short notice; the first one is for clusters that have none of
the others."""
SPOT_TAINTS = (
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-preemptible",
    "kubernetes.azure.com/scalesetpriority",
)
"""The labels that are also taints of such nodes."""


def avoid_suspect_nodes(spec: Json, suspects: Iterable[SuspectNode]) -> Json:
    """Return the spec with suspect nodes excluded by name: always, or where another node is available."""
    nodes = [*suspects]
    spec = _require(spec, "matchFields", _all_but(node for node in nodes if node.avoidance is Avoidance.REQUIRED))
    if excluded := _all_but(node for node in nodes if node.avoidance is Avoidance.PREFERRED):
        spec = _prefer(spec, [{"weight": AVOID_NODE_WEIGHT, "preference": {"matchFields": excluded}}])
    return spec


def require_on_demand(spec: Json) -> Json:
    """Return the spec with spot nodes excluded. A node without any of the labels is no spot node."""
    matches = [{"key": label, "operator": "NotIn", "values": [*values]} for label, values in SPOT_LABELS.items()]
    return _require(spec, "matchExpressions", matches)


def prefer_spot(spec: Json) -> Json:
    """Return the spec with a preference for spot nodes, and tolerations of their taints."""
    labels = [{"key": label, "operator": "In", "values": [*values]} for label, values in SPOT_LABELS.items()]
    preferences = [{"weight": SPOT_NODE_WEIGHT, "preference": {"matchExpressions": [label]}} for label in labels]
    taints = [
        {"key": label, "operator": "Equal", "value": value, "effect": "NoSchedule"}
        for label in SPOT_TAINTS
        for value in SPOT_LABELS[label]
    ]
    return _prefer(spec, preferences) | {"tolerations": [*(spec.get("tolerations") or []), *taints]}


def _require(spec: Json, kind: str, matches: Sequence[Json]) -> Json:
    """Add all of `matches` to each of the user's terms, since a node has to match only one of the terms."""
    if not matches:
        return spec
    required = _node_affinity(spec).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [{**term, kind: [*(term.get(kind) or []), *matches]} for term in required.get("nodeSelectorTerms") or [{}]]
    return _with_node_affinity(spec, {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}})


def _prefer(spec: Json, preferences: Sequence[Json]) -> Json:
    preferred = _node_affinity(spec).get("preferredDuringSchedulingIgnoredDuringExecution") or []
    return _with_node_affinity(spec, {"preferredDuringSchedulingIgnoredDuringExecution": [*preferred, *preferences]})


def _node_affinity(spec: Json) -> Json:
    node_affinity: Json = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return node_affinity


def _with_node_affinity(spec: Json, changes: Json) -> Json:
    affinity = {**(spec.get("affinity") or {}), "nodeAffinity": {**_node_affinity(spec), **changes}}
    return {**spec, "affinity": affinity}


def _all_but(nodes: Iterable[SuspectNode]) -> list[Json]:
    # One name for each requirement: the API server allows no more in `matchFields`.
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node.name]} for node in nodes]
