"""Find the rank on which a hung group is blocked, from the stacks of its ranks. Pure."""

from collections import Counter
from dataclasses import dataclass

from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodView

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
    ranks = {rank.rank: (rank, report.index) for report in reports for rank in report.ranks}
    frames = {number: (rank.stack[0], index) for number, (rank, index) in ranks.items() if rank.stack}
    counts = Counter(frame for frame, _ in frames.values())
    alone = [rank for rank, (frame, _) in frames.items() if counts[frame] == 1]
    # Those that cannot answer need no comparison.
    if blocked := [(number, rank, index) for number, (rank, index) in ranks.items() if rank.blocked and not rank.stack]:
        if len(blocked) > 1 or not frames:
            return None
        ((number, rank, index),) = blocked
        return Culprit(number, "", pods[index], rank.blocked)
    if len(frames) < MIN_RANKS or len(counts) != 2 or len(alone) != 1:
        return None
    frame, index = frames[alone[0]]
    return Culprit(alone[0], frame, pods[index])
