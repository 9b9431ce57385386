"""Goodput: what a job's active time went into, from the steps that agents tell. Pure.

Each step counts once, by its number, at what a step took as a rule when it was told; what is left of the time is lost, under the name
of what the job did meanwhile. Time is settled where a step is told, and where the job stops: what is settled stands in the status and is
never looked at again, so that an operator that starts anew goes on from there. All of it together is the active time, always.

It is as exact as what is told. Steps done after an attempt's last report, those of five seconds as a rule, are known where a rank failed and
has told its step, or where the next attempt begins behind them; otherwise their time is lost in recovery and not in repeated steps. A ratio
is not concerned: whatever step a job comes to, it counts once.
"""

from datetime import datetime, timedelta

from trainyard.api.base import MOST
from trainyard.api.progress import Goodput, LostSeconds, Progress
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.snapshot import Snapshot

BEHIND = 60.0
"""Seconds. What is settled further ahead than that was so by a clock that was set back since, or by hand: time goes on from now."""


def step_reported_at(snapshot: Snapshot, now: datetime) -> datetime:
    """When the step that the group has done was told: that of the rank furthest behind."""
    told = [
        (rank.step, report.at or now)
        for report in snapshot.attempt_reports
        for rank in report.ranks
        if rank.step is not None
    ]
    last = min((step for step, _ in told), default=None)
    return max((at for step, at in told if step == last), default=now)


def reported(snapshot: Snapshot, seen: Progress | None, active: timedelta) -> Goodput | None:
    """The goodput after a report: that of the status before, where no step is new or it is not known how long one takes.

    `seen`: how far the group is; `active`: for how long the job had been active when that was told.
    """
    status = snapshot.job.status
    before, at = status.goodput, active.total_seconds()
    if (
        seen is None
        or seen.step is None
        or all(r.step is None for report in snapshot.attempt_reports for r in report.ranks)
    ):
        return before
    if before is None:
        before = _opened(snapshot, seen.step, at)
    if (before.attempt, before.step) == (status.attempt, seen.step):
        return before
    usual = seen.step_seconds or (status.progress.step_seconds if status.progress else None)
    passed = at - before.accounted_seconds
    if not usual or -BEHIND <= passed <= 0:
        return before
    passed, new = max(0.0, passed), before.attempt != status.attempt
    done = _begun(snapshot, min(seen.step, before.furthest_step)) if new else before.step
    reached = _reached(status, before) if new else before.furthest_step
    furthest = max(seen.step, reached)
    productive = min(passed, usual * (furthest - before.furthest_step))
    repeated = min(passed - productive, usual * max(0, min(seen.step, reached) - done))
    lost = _lost(before, passed - productive - repeated, trained=not new, repeated=repeated)
    settled = before.evolve(furthest_step=furthest, attempt=status.attempt, step=seen.step, accounted_seconds=at)
    return _summed(settled, before.productive_seconds + productive, lost)


def settled(status: TrainingJobStatus, active: timedelta) -> Goodput | None:
    """The goodput of a job that ends or is suspended, after so much active time."""
    before = status.goodput
    if before is None:
        return None
    at, until = active.total_seconds(), before.accounted_seconds
    # A step may have been told within the second that `active` leaves out.
    at = until if at < until <= at + BEHIND else at
    passed = max(0.0, at - until)
    lost = _lost(before, passed, trained=before.attempt == status.attempt)
    return _summed(before.evolve(accounted_seconds=at), before.productive_seconds, lost)


def at_restart(status: TrainingJobStatus, active: timedelta) -> Goodput | None:
    """The goodput as the current attempt makes room for another one.

    The time of one that did no step was lost. How long one that did has trained is told by the step from which the next goes on.
    """
    before = status.goodput
    trained = before is not None and before.attempt == status.attempt
    return before if trained else settled(status, active)


def _opened(snapshot: Snapshot, step: int, active: float) -> Goodput:
    """Before the first step that is counted."""
    status = snapshot.job.status
    if status.progress and status.progress.step is not None:
        # It trained before anybody counted.
        return Goodput(accounted_seconds=active, furthest_step=step, attempt=status.attempt, step=step)
    begun = _begun(snapshot, step)
    return Goodput(furthest_step=begun, step=begun)


def _begun(snapshot: Snapshot, otherwise: int) -> int:
    """The step from which the attempt went on, or this one where nobody has told."""
    told = [
        rank.first
        for report in snapshot.attempt_reports
        for rank in report.ranks
        if rank.first is not None and rank.step is not None and rank.first <= rank.step
    ]
    return max(0, min(told) - 1) if told else otherwise


def _reached(status: TrainingJobStatus, before: Goodput) -> int:
    """The furthest step of all attempts before this one. A rank that failed has told its last, which came too late for a report."""
    last = status.last_failure
    told = last.step if last is not None and last.attempt == before.attempt else None
    return max(before.furthest_step, told or 0)


def _lost(before: Goodput, rest: float, *, trained: bool, repeated: float = 0.0) -> LostSeconds:
    """What was lost with `rest` seconds more. `trained`: whether the attempt had done a step before them."""
    lost = before.lost_seconds
    name = "other" if trained else "recovery" if before.attempt else "startup"
    after = {name: getattr(lost, name) + max(0.0, rest), "repeated": lost.repeated + repeated}
    return lost.evolve(**({each: _rounded(seconds) for each, seconds in after.items()}))


def _summed(goodput: Goodput, productive: float, lost: LostSeconds) -> Goodput:
    total = productive + lost.startup + lost.recovery + lost.repeated + lost.other
    return goodput.evolve(
        ratio=round(productive / total, 4) if total else None,
        productive_seconds=_rounded(productive),
        lost_seconds=lost,
        accounted_seconds=_rounded(goodput.accounted_seconds),
    )


def _rounded(seconds: float) -> float:
    """To milliseconds; and, whatever somebody has written into the status by hand, to what can be stored."""
    return min(round(seconds, 3), float(MOST))
