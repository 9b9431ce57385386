"""Where a worker may go: away from the nodes that its job avoids, within what the user's own affinity allows. Pure."""

from collections.abc import Iterable

from trainyard.api.status import Avoidance, SuspectNode
from trainyard.frameworks.worker import Json

STRONGEST = 100
"""The greatest weight of a preference."""


def avoid(spec: Json, suspects: Iterable[SuspectNode]) -> None:
    """Keep a pod away from nodes, by their names: always, or where there is another place."""
    nodes = [*suspects]
    never = _all_but(node for node in nodes if node.avoided is Avoidance.ALWAYS)
    rather_not = _all_but(node for node in nodes if node.avoided is Avoidance.IF_POSSIBLE)
    if not never and not rather_not:
        return
    affinity = spec["affinity"] = {**(spec.get("affinity") or {})}
    node_affinity = affinity["nodeAffinity"] = {**(affinity.get("nodeAffinity") or {})}
    if never:
        required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        # Any one of the user's terms suffices, and each is held to all of its fields.
        terms = [
            {**term, "matchFields": [*(term.get("matchFields") or []), *never]}
            for term in required.get("nodeSelectorTerms") or [{}]
        ]
        node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if rather_not:
        preferred = node_affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
        preference = {"weight": STRONGEST, "preference": {"matchFields": rather_not}}
        node_affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [*preferred, preference]


def _all_but(nodes: Iterable[SuspectNode]) -> list[Json]:
    # One name each: the API server takes no more.
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node.name]} for node in nodes]
