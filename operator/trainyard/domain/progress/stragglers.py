"""Find stragglers, the ranks that are slower than the others, from the step times that agents report. Pure. They restart nothing.

Where all ranks wait for each other in each step, all of them have the slowest one's step time. So the ranks' own computing time is
compared where the program reports it. Otherwise the step times are, which is right for uneven work, for example local SGD.
GPUs that wait for each other within each pass are also compared by the time of the same matrix products.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
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
MIN_EXCESS = 0.05
"""Of its step time, by which a rank's own time has to be above the median. With FSDP, the own time is the wait for data alone: where
all wait for microseconds, no factor matters."""
MIN_RANKS = 3
"""The fewest ranks with a meaningful median. Of two, either may be the normal one."""


@dataclass(frozen=True, slots=True)
class Paces:
    """The times of the ranks that train now, in seconds. Empty where too few ranks report them."""

    steps: Mapping[int, float]
    """Of a step."""
    own: bool = False
    """Whether `steps` are the ranks' own seconds, without those in which they wait for others."""
    whole: Mapping[int, float] = field(default_factory=dict)
    """Of a step with these."""
    gemm: Mapping[int, float] = field(default_factory=dict)
    """Of a GPU for the same matrix products."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The time of a rank by which it is furthest behind."""

    factor: float
    """Times the median of the group."""
    step_seconds: float = 0.0
    gemm_seconds: float | None = None
    """None where the step time is the one that is behind."""


def paces(snapshot: Snapshot) -> Paces:
    """Return the step times of the current attempt. A rank in another phase than training is not measured."""
    ranks = [rank for report in snapshot.attempt_reports for rank in report.ranks if rank.phase == "train"]
    own = _enough({rank.rank: rank.compute_seconds for rank in ranks if rank.compute_seconds})
    steps = _enough({rank.rank: rank.step_seconds for rank in ranks if rank.step_seconds})
    gemm = _enough({rank.rank: seconds for rank in ranks if (seconds := rank.measured.get("gemm_seconds"))})
    return Paces(own or steps, own=bool(own), whole=steps, gemm=gemm)


def _enough(seconds: Mapping[int, float]) -> Mapping[int, float]:
    return seconds if len(seconds) >= MIN_RANKS else {}


def _behind(reported: Paces) -> Mapping[int, Pace]:
    """Return of each rank the time by which it is furthest behind."""
    usual = median(reported.steps.values()) if reported.steps else 0.0
    by_step = {
        rank: Pace(min(MAX_FACTOR, seconds / usual), seconds)
        for rank, seconds in reported.steps.items()
        if not reported.own or seconds - usual >= MIN_EXCESS * reported.whole.get(rank, 0.0)
    }
    usual = median(reported.gemm.values()) if reported.gemm else 0.0
    by_gemm = {
        rank: Pace(min(MAX_FACTOR, seconds / usual), reported.steps.get(rank, 0.0), seconds)
        for rank, seconds in reported.gemm.items()
    }
    ranks = reported.steps.keys() | reported.gemm.keys()
    none = Pace(-inf)
    # Of two equal ones, the step time: it says what a slow rank costs.
    return {rank: max(by_step.get(rank, none), by_gemm.get(rank, none), key=lambda pace: pace.factor) for rank in ranks}


def stragglers(snapshot: Snapshot, now: datetime) -> list[Straggler]:
    """Return the ranks that are slow now, by number; of more than the status holds, those that have been slow for longest."""
    known = {each.rank: each for each in snapshot.job.status.stragglers}
    reported = _behind(paces(snapshot))
    # A rank without a new report stays what it was: a checkpoint is no recovery.
    slow = [each for each in known.values() if each.rank not in reported]
    pods = {pod.index: pod for pod in snapshot.current}
    where = {rank.rank: pods.get(report.index) for report in snapshot.attempt_reports for rank in report.ranks}
    for rank, pace in reported.items():
        before = known.get(rank)
        if pace.factor >= STRAGGLER_FACTOR or (before and before.confirmed and pace.factor > RECOVERED_FACTOR):
            slow.append(_straggler(rank, where[rank], pace, before, now))
    first = sorted(slow, key=lambda each: (not each.confirmed, each.since, -each.factor))
    return sorted(first[:MAX_STRAGGLERS], key=lambda each: each.rank)


def _straggler(rank: int, pod: PodView | None, pace: Pace, before: Straggler | None, now: datetime) -> Straggler:
    since = min(before.since, now) if before else now
    return Straggler(
        rank=rank,
        pod=pod.name if pod else "",
        node=pod.node if pod else None,
        # Rounded, so that noise does not cause status writes.
        step_seconds=float(f"{pace.step_seconds:.2g}"),
        gemm_seconds=None if pace.gemm_seconds is None else float(f"{pace.gemm_seconds:.2g}"),
        factor=round(pace.factor, 1),
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
    if not (reported.steps or reported.gemm):
        return None
    worst = max(slow, key=lambda each: each.factor)
    rank = f"rank {worst.rank} (pod {worst.pod}{f' on {worst.node}' if worst.node else ''})"
    several = f"{len(slow)} ranks are slower than the others; " if len(slow) > 1 else ""
    if worst.gemm_seconds is None:
        takes = f"takes {worst.step_seconds:g} s per step{' by itself' if reported.own else ''}"
    else:
        takes = f"has a slow GPU: it takes {worst.gemm_seconds:g} s for 50 TFLOP of matrix products"
    compared = reported.steps if worst.gemm_seconds is None else reported.gemm
    factor = f"{worst.factor:g} times the median of {counted(len(compared), 'rank')}"
    return SetTrue(C.STRAGGLING, Reason.STRAGGLERS_DETECTED, f"{several}{rank} {takes}, {factor}")
