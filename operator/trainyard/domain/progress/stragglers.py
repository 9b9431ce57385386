"""Find stragglers, the ranks that are slower than the others, from the step times that agents report. Pure. They restart nothing.

Where all ranks wait for each other in each step, all of them have the slowest one's step time. So the ranks' own computing time is
compared where the program reports it. Otherwise the step times are, which is right for uneven work, for example local SGD.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from trainyard.api.progress import MAX_STRAGGLERS, Straggler
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, TrainingJobStatus
from trainyard.domain.decisions import Clear, ConditionUpdate, SetTrue
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodView
from trainyard.domain.wording import counted

STRAGGLER_FACTOR, RECOVERED_FACTOR = 1.5, 1.25
"""Times the median: at the first a rank becomes a straggler, at the second it is none any more. Between them it stays what it was."""
WINDOW = timedelta(seconds=60)
"""How long a rank has to be slow. Agents report the median of up to 32 steps, so that one slow step does not count."""
MAX_FACTOR = 1000.0
"""The largest factor that is reported: an agent may send any number."""
MIN_RANKS = 3
"""The fewest ranks with a meaningful median. Of two, either may be the normal one."""


@dataclass(frozen=True, slots=True)
class Paces:
    """The step times of the ranks that train now, in seconds. Empty where too few ranks report them."""

    seconds: Mapping[int, float]
    own: bool = False
    """Whether these are the ranks' own seconds, without those in which they wait for others."""


def paces(snapshot: Snapshot) -> Paces:
    """Return the step times of the current attempt. A rank in another phase than training is not measured."""
    ranks = [rank for report in snapshot.attempt_reports for rank in report.ranks if rank.phase == "train"]
    own = {rank.rank: rank.compute_seconds for rank in ranks if rank.compute_seconds}
    if len(own) >= MIN_RANKS:
        return Paces(own, own=True)
    steps = {rank.rank: rank.step_seconds for rank in ranks if rank.step_seconds}
    return Paces(steps if len(steps) >= MIN_RANKS else {})


def stragglers(snapshot: Snapshot, now: datetime) -> list[Straggler]:
    """Return the ranks that are slow now, by number; of more than the status holds, those that have been slow for longest."""
    known = {each.rank: each for each in snapshot.job.status.stragglers}
    reported = paces(snapshot)
    # A rank without a new report stays what it was: a checkpoint is no recovery.
    slow = [each for each in known.values() if each.rank not in reported.seconds]
    usual = median(reported.seconds.values()) if reported.seconds else 0.0
    pods = {pod.index: pod for pod in snapshot.current}
    where = {rank.rank: pods.get(report.index) for report in snapshot.attempt_reports for rank in report.ranks}
    for rank, seconds in reported.seconds.items():
        before, factor = known.get(rank), min(MAX_FACTOR, seconds / usual)
        if factor >= STRAGGLER_FACTOR or (before and before.confirmed and factor > RECOVERED_FACTOR):
            slow.append(_straggler(rank, where[rank], seconds, factor, before, now))
    first = sorted(slow, key=lambda each: (not each.confirmed, each.since, -each.factor))
    return sorted(first[:MAX_STRAGGLERS], key=lambda each: each.rank)


def _straggler(
    rank: int, pod: PodView | None, seconds: float, factor: float, before: Straggler | None, now: datetime
) -> Straggler:
    since = min(before.since, now) if before else now
    return Straggler(
        rank=rank,
        pod=pod.name if pod else "",
        node=pod.node if pod else None,
        # Rounded, so that noise does not cause status writes.
        step_seconds=float(f"{seconds:.2g}"),
        factor=round(factor, 1),
        since=since,
        confirmed=(before is not None and before.confirmed) or now - since >= WINDOW,
    )


def confirmed(status: TrainingJobStatus) -> Sequence[Straggler]:
    """Return the stragglers that the condition reports."""
    return [each for each in status.stragglers if each.confirmed]


def straggling(snapshot: Snapshot, now: datetime) -> tuple[ConditionUpdate | None, list[float]]:
    """Return the update of Straggling, if any, and the seconds until a rank has been slow for WINDOW.

    Where steps are long, no report arrives before that.
    """
    ends = [
        (each.since - now + WINDOW).total_seconds() for each in snapshot.job.status.stragglers if not each.confirmed
    ]
    return _condition(snapshot), [seconds for seconds in ends if seconds > 0]


def _condition(snapshot: Snapshot) -> ConditionUpdate | None:
    """Return the update of Straggling; None where a straggler is stored and too few ranks report their steps."""
    slow = confirmed(snapshot.job.status)
    if not slow:
        return Clear(C.STRAGGLING, Reason.NO_STRAGGLERS, "no rank is slower than the others")
    reported = paces(snapshot)
    if not reported.seconds:
        return None
    worst = max(slow, key=lambda each: each.factor)
    rank = f"rank {worst.rank} (pod {worst.pod}{f' on {worst.node}' if worst.node else ''})"
    several = f"{len(slow)} ranks are slower than the others; " if len(slow) > 1 else ""
    alone = " by itself" if reported.own else ""
    factor = f"{worst.factor:g} times the median of {counted(len(reported.seconds), 'rank')}"
    return SetTrue(
        C.STRAGGLING,
        Reason.STRAGGLERS_DETECTED,
        f"{several}{rank} takes {worst.step_seconds:g} s per step{alone}, {factor}",
    )
