"""Find the rank on which a hung group is blocked, from the stacks of its ranks. Pure."""

from collections import Counter
from dataclasses import dataclass

from trainyard.domain.state.snapshot import PodView, Snapshot

MIN_RANKS = 3
"""The fewest ranks of which one can be told apart from the others."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The only rank whose innermost frame differs from that of all others, which are blocked on it."""

    rank: int
    place: str
    """Its innermost frame; empty where it cannot answer."""
    pod: PodView
    blocked: str = ""
    """Why it cannot answer: `stopped` by a signal, or `uninterruptible` in the kernel."""


def culprit(snapshot: Snapshot) -> Culprit | None:
    """Return that rank, if the agents have reported the stacks of their ranks, and there is one."""
    pods = {pod.index: pod for pod in snapshot.current}
    reports = [report for report in snapshot.attempt_reports if report.index in pods]
    ranks = {rank.rank: (rank, report.index) for report in reports for rank in report.ranks}
    places = {number: (rank.stack[0], index) for number, (rank, index) in ranks.items() if rank.stack}
    counts = Counter(place for place, _ in places.values())
    alone = [rank for rank, (place, _) in places.items() if counts[place] == 1]
    # Those that cannot answer need no comparison.
    if blocked := [(number, rank, index) for number, (rank, index) in ranks.items() if rank.blocked and not rank.stack]:
        if len(blocked) > 1 or not places:
            return None
        ((number, rank, index),) = blocked
        return Culprit(number, "", pods[index], rank.blocked)
    if len(places) < MIN_RANKS or len(counts) != 2 or len(alone) != 1:
        return None
    place, index = places[alone[0]]
    return Culprit(alone[0], place, pods[index])
