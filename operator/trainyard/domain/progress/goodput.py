"""Account for a job's active time as goodput: productive steps and lost time, from the steps that agents report. Pure.

Each step counts once, by its number, at the usual duration of a step when it was reported. The rest of the time is lost, under the
name of what the job did meanwhile. Time is accounted for when a step is reported, and when the job stops. The status keeps the sums,
so that a restarted operator continues from there. All parts together are the active time, always.

The result is as exact as the reports. Steps after an attempt's last report, usually those of five seconds, are known if
a rank failed and reported its step. They are also known if the next attempt starts behind them. Otherwise their time
counts as lost in recovery and not in repeated steps. The ratio does not change: each step that a job reaches counts
once.
"""

from datetime import datetime, timedelta

from trainyard.api.base import MAX_JSON_INTEGER
from trainyard.api.progress import Goodput, LostSeconds, Progress
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.snapshot import Snapshot

MAX_AHEAD_SECONDS = 60.0
"""Accounting further ahead than that comes from a clock that was set back, or was edited by hand: it starts again from now."""


def active_time(status: TrainingJobStatus, now: datetime) -> timedelta:
    """Return for how long the job has been active, without the time for which it was suspended."""
    before = timedelta(seconds=status.internal.active_seconds)
    # A clock that was set back, or a status that was edited by hand, must not make it less.
    return before + max(timedelta(), now - status.internal.active_since) if status.internal.active_since else before


def step_reported_at(snapshot: Snapshot, now: datetime) -> datetime:
    """Return when the group's last completed step was reported: that of the rank furthest behind."""
    steps = [
        (rank.step, report.at or now)
        for report in snapshot.attempt_reports
        for rank in report.ranks
        if rank.step is not None
    ]
    last = min((step for step, _ in steps), default=None)
    return max((at for step, at in steps if step == last), default=now)


def reported(snapshot: Snapshot, seen: Progress | None, now: datetime) -> Goodput | None:
    """Return the goodput after a report: the stored one where no step is new, or the duration of a step is not known.

    `seen`: the group's progress.
    """
    status = snapshot.job.status
    before, at = status.goodput, active_time(status, step_reported_at(snapshot, now)).total_seconds()
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
    if not usual or -MAX_AHEAD_SECONDS <= passed <= 0:
        return before
    passed, new = max(0.0, passed), before.attempt != status.attempt
    done = _continued_from(snapshot, min(seen.step, before.furthest_step)) if new else before.step
    reached = _reached(status, before) if new else before.furthest_step
    furthest = max(seen.step, reached)
    productive = min(passed, usual * (furthest - before.furthest_step))
    repeated = min(passed - productive, usual * max(0, min(seen.step, reached) - done))
    rest = passed - productive - repeated
    compared = min(rest, _preflight_seconds(snapshot)) if new else 0.0
    after = _accounted(
        before, productive, rest - compared, until=at, trained=not new, repeated=repeated, preflight=compared
    )
    return after.evolve(furthest_step=furthest, attempt=status.attempt, step=seen.step)


def at_end(status: TrainingJobStatus, now: datetime, *, restarts: bool = False) -> Goodput | None:
    """Return the goodput when the current attempt is over. `restarts`: whether another one starts at once.

    Then the time of an attempt without steps is lost. For any other, the first step of the next attempt shows how long it trained.
    """
    before = status.goodput
    if before is None or (restarts and before.attempt == status.attempt):
        return before
    at, until = active_time(status, now).total_seconds(), before.accounted_seconds
    # A step may have been reported within the second that `active` omits.
    at = until if at < until <= at + MAX_AHEAD_SECONDS else at
    passed = max(0.0, at - until)
    return _accounted(before, 0.0, passed, until=at, trained=before.attempt == status.attempt)


def _opened(snapshot: Snapshot, step: int, active: float) -> Goodput:
    """Return the goodput before the first step that counts."""
    status = snapshot.job.status
    if status.progress and status.progress.step is not None:
        # It trained before the accounting started.
        return Goodput(accounted_seconds=active, furthest_step=step, attempt=status.attempt, step=step)
    first = _continued_from(snapshot, step)
    return Goodput(furthest_step=first, step=first)


def _continued_from(snapshot: Snapshot, otherwise: int) -> int:
    """Return the step from which the attempt continued, or `otherwise` where none was reported."""
    firsts = [
        rank.first
        for report in snapshot.attempt_reports
        for rank in report.ranks
        if rank.first is not None and rank.step is not None and rank.first <= rank.step
    ]
    return max(0, min(firsts) - 1) if firsts else otherwise


def _preflight_seconds(snapshot: Snapshot) -> float:
    """Return how long the nodes of the attempt were compared before its ranks started."""
    return max((report.preflight_seconds for report in snapshot.attempt_reports), default=0.0)


def _reached(status: TrainingJobStatus, before: Goodput) -> int:
    """Return the furthest step of all earlier attempts. A failed rank names its last step, which came too late for a report."""
    last = status.last_failure
    failed_at = last.step if last is not None and last.attempt == before.attempt else None
    return max(before.furthest_step, failed_at or 0)


def _accounted(
    before: Goodput,
    productive: float,
    rest: float,
    *,
    until: float,
    trained: bool,
    repeated: float = 0.0,
    preflight: float = 0.0,
) -> Goodput:
    """Return the goodput with the active time accounted for until then: so many seconds more are productive, lost and repeated."""
    lost = _lost(before, rest, trained=trained, repeated=repeated, preflight=preflight)
    done = before.productive_seconds + productive
    total = done + sum(getattr(lost, name) for name in LostSeconds.model_fields)
    return before.evolve(
        ratio=round(done / total, 4) if total else None,
        productive_seconds=_rounded(done),
        lost_seconds=lost,
        accounted_seconds=_rounded(until),
    )


def _lost(before: Goodput, rest: float, *, trained: bool, repeated: float = 0.0, preflight: float = 0.0) -> LostSeconds:
    """Return the lost time with `rest` seconds more. `trained`: whether the attempt had completed a step before them."""
    lost = before.lost_seconds
    name = "other" if trained else "recovery" if before.attempt else "startup"
    more = {name: max(0.0, rest), "repeated": repeated, "preflight": preflight}
    after = {each: getattr(lost, each) + seconds for each, seconds in more.items()}
    return lost.evolve(**({each: _rounded(seconds) for each, seconds in after.items()}))


def _rounded(seconds: float) -> float:
    """Round to milliseconds, and limit to what can be stored: the status may have been edited by hand."""
    return min(round(seconds, 3), float(MAX_JSON_INTEGER))
