"""Find the rank on which a hung group is blocked, from the stacks of its ranks. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodView, RankProgress

MIN_RANKS = 3
"""The fewest ranks of which one can be singled out."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The only rank whose innermost frame differs from that of all others, which are blocked on it."""

    rank: int
    frame: str
    """Its innermost frame; empty where it cannot answer."""
    pod: PodView
    blocked: str = ""
    """Why it cannot answer: `stopped` by a signal, or `uninterruptible` in the kernel."""


def culprit(snapshot: Snapshot) -> Culprit | None:
    """Return that rank, if the agents have reported the stacks of their ranks, and there is one."""
    pods = {pod.index: pod for pod in snapshot.current}
    reports = [report for report in snapshot.attempt_reports if report.index in pods]
    ranks = {rank.rank: (rank, pods[report.index]) for report in reports for rank in report.ranks}
    answering = [(rank, pod) for rank, pod in ranks.values() if rank.stack]
    # Those that cannot answer need no comparison.
    if silent := [(rank, pod) for rank, pod in ranks.values() if rank.blocked and not rank.stack]:
        rank, pod = silent[0]
        return Culprit(rank.rank, "", pod, rank.blocked) if len(silent) == 1 and answering else None
    return _alone(answering)


def _alone(ranks: Sequence[tuple[RankProgress, PodView]]) -> Culprit | None:
    """Return the only rank in another frame than all others, which are in one."""
    counts = Counter(rank.stack[0] for rank, _ in ranks)
    alone = [(rank, pod) for rank, pod in ranks if counts[rank.stack[0]] == 1]
    if len(ranks) < MIN_RANKS or len(counts) != 2 or len(alone) != 1:
        return None
    ((rank, pod),) = alone
    return Culprit(rank.rank, rank.stack[0], pod)
