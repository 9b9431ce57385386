"""Who of a group that hangs keeps the others waiting, from where their ranks stand. Pure."""

from collections import Counter
from dataclasses import dataclass

from trainyard.domain.state.snapshot import PodView, Snapshot

SEVERAL = 3
"""Of so many ranks one can be the odd one out."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The only rank that stands elsewhere than all others, which wait for it at one place."""

    rank: int
    place: str
    """Its innermost frame; empty where it cannot answer."""
    pod: PodView
    blocked: str = ""
    """Why it cannot answer: `stopped` by a signal, or `uninterruptible` in the kernel."""


def culprit(snapshot: Snapshot) -> Culprit | None:
    """That rank, if the agents have told where their ranks stand, and there is one."""
    pods = {pod.index: pod for pod in snapshot.current}
    told = [report for report in snapshot.told if report.index in pods]
    ranks = {rank.rank: (rank, report.index) for report in told for rank in report.ranks}
    places = {number: (rank.stack[0], index) for number, (rank, index) in ranks.items() if rank.stack}
    counts = Counter(place for place, _ in places.values())
    alone = [rank for rank, (place, _) in places.items() if counts[place] == 1]
    # Those that cannot answer need no comparison.
    if blocked := [(number, rank, index) for number, (rank, index) in ranks.items() if rank.blocked and not rank.stack]:
        if len(blocked) > 1 or not places:
            return None
        ((number, rank, index),) = blocked
        return Culprit(number, "", pods[index], rank.blocked)
    if len(places) < SEVERAL or len(counts) != 2 or len(alone) != 1:
        return None
    place, index = places[alone[0]]
    return Culprit(alone[0], place, pods[index])
