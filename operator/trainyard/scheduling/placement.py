"""Decide whether the ranks of a job follow the placement of its workers, and in which order. Pure."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from trainyard.api.constants import LABEL_INDEX
from trainyard.api.scheduling import PLACED_FRAMEWORKS, RankOrder
from trainyard.domain.state.accelerators import TPU, requested
from trainyard.domain.state.job_template import fixes_a_value, patterns_of
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.scheduling.rank_order import Place, rank_order

MIN_WORKERS: Final = 3
"""Of two workers, the first has the first ranks in any order."""
RANK_VARIABLES: Final = frozenset(
    {"RANK", "NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "HOROVOD_RANK", "HOROVOD_CROSS_RANK"}
    | {"JAX_PROCESS_ID", "PROCESS_ID", "SLURM_PROCID"}
)
"""Variables that differ between workers by their ranks. The operator keeps one that the user sets."""
INDEX_VARIABLE: Final = "TRAINYARD_REPLICA_INDEX"
FIXED_RANKS = patterns_of("|".join(sorted(RANK_VARIABLES)), re.escape(LABEL_INDEX))
"""What the kubelet expands when it creates a pod, before the order is known."""


def follows_placement(job: JobView, workers: int, *, by_default: bool) -> bool:
    """Return whether the ranks of a new group of so many workers follow their placement.

    `by_default`: whether they do where the user does not say so, since the operator knows the places of all nodes.
    """
    chosen = job.spec.scheduling.rank_order
    wanted = (by_default or _splits_tensors(job)) if chosen is None else chosen is RankOrder.PLACEMENT
    return wanted and workers >= MIN_WORKERS and not obstacle(job)


def obstacle(job: JobView) -> str:
    """Return why the ranks of this job cannot follow the placement, and what to change; empty where they can."""
    spec = job.spec
    containers: Sequence[Mapping[str, Any]] = spec.template["spec"]["containers"]
    if spec.framework not in PLACED_FRAMEWORKS:
        return f"with the framework {spec.framework} ranks follow the indexes of workers"
    if not job.wants_agent:
        return "the workers have no agent that could wait for the order: set command of the main container"
    if any(requested(container, TPU) for container in containers):
        return "TPUs of a slice have a fixed order"
    own = sorted({variable["name"] for each in containers for variable in each.get("env") or ()} & RANK_VARIABLES)
    if own:
        return f"the template sets {', '.join(own)}: remove it from env"
    if INDEX_VARIABLE in json.dumps(spec.template) or fixes_a_value(spec, FIXED_RANKS):
        return "the template uses the index of a worker, or $(…) with its rank: read the rank when the program starts"
    return ""


def ignored_order(job: JobView, *, served: bool) -> str:
    """Return why the ranks do not follow the placement although the user wants that, and what to change; empty where they do.

    `served`: whether the operator injects agents, which it also serves.
    """
    if job.spec.scheduling.rank_order is not RankOrder.PLACEMENT:
        return ""
    why = obstacle(job) if served else "the chart has disabled the agent (agent.enabled)"
    return f"scheduling.rankOrder: placement has no effect: {why}" if why else ""


def placement_order(snapshot: Snapshot, place_of_node: Callable[[str], Place]) -> Sequence[int]:
    """Return the order of the workers of a group that waits for it; nothing for any other.
    `place_of_node`: returns the place of a node by its labels; nothing where that is not known.
    """
    if not snapshot.awaits_order:
        return ()
    workers = snapshot.current_workers
    if [pod.index for pod in workers] != list(range(len(workers))):
        return ()
    known = [_merged(place_of_node(pod.node or ""), pod.place) for pod in workers]
    depth = max(map(len, known))
    places = [(*(place or ("",) * depth), pod.node or "") for place, pod in zip(known, workers, strict=True)]
    return rank_order(places, unit_of(snapshot.job))


def unit_of(job: JobView) -> int:
    """Return how many workers form a tensor parallel group; where one fits into a worker, a context parallel group."""
    split, processes = job.spec.parallelism, job.processes
    if split is None:
        return 1
    for ranks in (split.tensor, split.tensor * split.context):
        if ranks > processes:
            return ranks // processes if ranks % processes == 0 else 1
    return 1


def _splits_tensors(job: JobView) -> bool:
    return job.spec.parallelism is not None and job.spec.parallelism.tensor > job.processes


def _merged(of_node: Place, of_pod: Place) -> Place:
    """Return what is known of a place: by the labels of the node, else by those of the pod."""
    if len(of_node) != len(of_pod):
        return of_node or of_pod
    return tuple(node or pod for node, pod in zip(of_node, of_pod, strict=True))
