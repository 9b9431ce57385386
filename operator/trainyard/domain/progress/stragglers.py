"""Which ranks are slower than the others, from what the agents tell of their steps. Pure. Nothing is restarted because of it.

Where all ranks wait for each other in each step, all of them take the slowest one's time. So what is compared is how long each
works itself, where the program tells that, else how long its steps take: right for work that is uneven by design, local SGD, say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from trainyard.api.progress import MOST_STRAGGLERS, Straggler
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, TrainingJobStatus
from trainyard.domain.actions import Event
from trainyard.domain.conditions import ConditionUpdate, clear_conditions, condition_true
from trainyard.domain.state.snapshot import PodView, Snapshot
from trainyard.domain.wording import counted

SLOW, WELL = 1.5, 1.25
"""Times the median: from there on a rank is a straggler, and at this it is none any more. Between the two it stays what it was."""
WINDOW = timedelta(seconds=60)
"""For so long a rank has to be slow. What agents tell is itself the median of up to 32 steps, so that one slow step is nothing."""
MOST_TIMES = 1000.0
"""Times the median that are told at most: of what an agent says each number may be anything."""
SEVERAL = 3
"""Of so many ranks a median means something. Of two, nobody knows which of them is as it should be."""


@dataclass(frozen=True, slots=True)
class Paces:
    """How long the steps of the ranks take that train now, in seconds. Empty where too few tell."""

    seconds: Mapping[int, float]
    own: bool = False
    """Whether those are the seconds in which each works itself."""


def paces(snapshot: Snapshot) -> Paces:
    """What is told of the current attempt. A rank that does something else than train is not measured meanwhile."""
    ranks = [rank for report in snapshot.told for rank in report.ranks if rank.phase == "train"]
    own = {rank.rank: rank.own_seconds for rank in ranks if rank.own_seconds}
    if len(own) >= SEVERAL:
        return Paces(own, own=True)
    steps = {rank.rank: rank.step_seconds for rank in ranks if rank.step_seconds}
    return Paces(steps if len(steps) >= SEVERAL else {})


def stragglers(snapshot: Snapshot, now: datetime) -> list[Straggler]:
    """The ranks that are slow now, by number; of more than can be told, those that have been so for longest."""
    known = {each.rank: each for each in snapshot.job.status.stragglers}
    told = paces(snapshot)
    # What nothing new is heard of stays what it was: a checkpoint is no recovery.
    slow = [each for each in known.values() if each.rank not in told.seconds]
    usual = median(told.seconds.values()) if told.seconds else 0.0
    pods = {pod.index: pod for pod in snapshot.current}
    where = {rank.rank: pods.get(report.index) for report in snapshot.told for rank in report.ranks}
    for rank, seconds in told.seconds.items():
        before, factor = known.get(rank), min(MOST_TIMES, seconds / usual)
        if factor >= SLOW or (before and before.confirmed and factor > WELL):
            slow.append(_straggler(rank, where[rank], seconds, factor, before, now))
    first = sorted(slow, key=lambda each: (not each.confirmed, each.since, -each.factor))
    return sorted(first[:MOST_STRAGGLERS], key=lambda each: each.rank)


def _straggler(
    rank: int, pod: PodView | None, seconds: float, factor: float, before: Straggler | None, now: datetime
) -> Straggler:
    since = min(before.since, now) if before else now
    return Straggler(
        rank=rank,
        pod=pod.name if pod else "",
        node=pod.node if pod else None,
        # As exact as people read it, so that noise is no news.
        step_seconds=float(f"{seconds:.2g}"),
        factor=round(factor, 1),
        since=since,
        confirmed=(before is not None and before.confirmed) or now - since >= WINDOW,
    )


def confirmed(status: TrainingJobStatus) -> Sequence[Straggler]:
    """Those of which the condition tells."""
    return [each for each in status.stragglers if each.confirmed]


def saying(snapshot: Snapshot) -> ConditionUpdate | None:
    """The condition, where there is something to say: as a rule nothing was ever slow."""
    slow = confirmed(snapshot.job.status)
    if not slow:
        ended = clear_conditions(
            snapshot.job.status, [C.STRAGGLING], Reason.NO_STRAGGLERS, "all ranks keep the same pace"
        )
        return next(iter(ended), None)
    told = paces(snapshot)
    if not told.seconds:
        return None
    worst = max(slow, key=lambda each: each.factor)
    who = f"rank {worst.rank} (pod {worst.pod}{f' on {worst.node}' if worst.node else ''})"
    several = f"{len(slow)} ranks are slower than the others; " if len(slow) > 1 else ""
    alone = " by itself" if told.own else ""
    factor = f"{worst.factor:g} times the median of {counted(len(told.seconds), 'rank')}"
    return condition_true(
        C.STRAGGLING,
        Reason.STRAGGLERS_DETECTED,
        f"{several}{who} takes {worst.step_seconds:g} s a step{alone}, {factor}",
    )


def begun(snapshot: Snapshot) -> list[Event]:
    """The event with which it begins."""
    said = saying(snapshot)
    news = said is not None and said.holds and not snapshot.job.status.holds(C.STRAGGLING)
    return [Event("Warning", Reason.STRAGGLERS_DETECTED, said.message)] if said and news else []


def deadlines(status: TrainingJobStatus, now: datetime) -> list[float]:
    """Seconds until a rank has been slow for long enough: where steps are long, nobody tells anything meanwhile."""
    ends = [(each.since - now + WINDOW).total_seconds() for each in status.stragglers if not each.confirmed]
    return [seconds for seconds in ends if seconds > 0]
