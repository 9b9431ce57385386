"""Count the ends of attempts: restarts by cause, failures in a row, what is left of the restart budget. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard.api.base import increment
from trainyard.api.internal_status import RestartBudget
from trainyard.api.recovery import Recovery
from trainyard.api.roles import is_worker
from trainyard.api.status import LastFailure, Restarts, StatusChanges, TrainingJobStatus
from trainyard.domain.recovery.repeated_failures import count_repeat, kept_repeat
from trainyard.domain.recovery.root_cause import Cause, describe_culprit
from trainyard.domain.state.observed_exits import MESSAGE_LIMIT
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import PodIssue

STABLE_RUN = timedelta(seconds=60)
"""An attempt whose workers all ran for this long before a disruption made progress. After it, whatever ended it, the backoff is reset."""
ASSUMED_PROGRESS = timedelta(hours=1)
"""An attempt whose workers all ran for this long before a failure made progress, where no step is known. An error that returns every few
minutes is no progress; for one that returns after hours, the start of a pod costs little."""


@dataclass(frozen=True, slots=True)
class CountedEnd:
    """The counters after the end of an attempt."""

    restarts: Restarts
    budget: RestartBudget
    used: int
    """Failures that count towards `recovery.maxRestarts`, this one included."""
    last_failure: LastFailure | None
    """The failure of this attempt; None: it is not counted."""

    @property
    def changes(self) -> StatusChanges:
        """The changes of the status that store these counters."""
        changes: StatusChanges = {"restarts": self.restarts, "restart_budget": self.budget}
        if self.last_failure:
            changes["last_failure"] = self.last_failure
        return changes


def count_end(job: JobView, cause: Cause, now: datetime) -> CountedEnd:
    """Count the end of the current attempt because of `cause`.

    Failures are forgiven once an attempt gets further than all before it, whether its own end is counted or not.
    """
    recovery, before = job.spec.recovery, job.status.restarts
    budget = _with_progress(job.status, cause, now)
    if not cause.counted:
        budget = budget.evolve(repeated=kept_repeat(job.status, cause, now))
        restarts = before.evolve(disruptions=increment(before.disruptions))
        return CountedEnd(restarts, budget, _used(restarts, budget, recovery, now), None)
    budget = _with_failure(before, budget, failures_at_step(job.status, cause), recovery, cause, now)
    budget = budget.evolve(repeated=count_repeat(job.status, cause, now))
    hangs = increment(before.hangs or 0) if cause.hung else before.hangs
    restarts = before.evolve(failures=increment(before.failures), hangs=hangs)
    return CountedEnd(restarts, budget, _used(restarts, budget, recovery, now), _last_failure(job, cause, now))


def got_further(budget: RestartBudget, cause: Cause) -> bool:
    """Return whether the job has passed the furthest step of all earlier attempts."""
    step, furthest = cause.step, budget.furthest_step
    return step is not None and furthest is not None and step > furthest


def failures_at_step(status: TrainingJobStatus, cause: Cause) -> int:
    """Return the number of consecutive failures at the step of `cause`, without `cause` itself."""
    last = status.last_failure
    same = cause.step is not None and last is not None and last.step == cause.step
    return (status.internal.restart_budget.at_same_step or 0) if same else 0


def _with_progress(status: TrainingJobStatus, cause: Cause, now: datetime) -> RestartBudget:
    """Return the budget with the progress of this attempt."""
    budget, step = status.internal.restart_budget, cause.step
    further = got_further(budget, cause)
    if step is not None:
        budget = budget.evolve(furthest_step=max(step, budget.furthest_step or 0))
    if further:
        budget = budget.evolve(
            forgiven=status.restarts.failures or budget.forgiven,
            out_of_memory=None,
            recent=None if budget.recent is None else [],
        )
    if step is None and status.running_time is not None and now - status.running_time >= ASSUMED_PROGRESS:
        # A leak that fills the memory within hours is tolerable.
        budget = budget.evolve(out_of_memory=None)
    return budget


def _with_failure(
    restarts: Restarts, budget: RestartBudget, at_step: int, recovery: Recovery, cause: Cause, now: datetime
) -> RestartBudget:
    """Return the budget with one failure more. `at_step`: consecutive failures at this step before it."""
    windowed, forgiven = recovery.window_seconds is not None, budget.forgiven
    if budget.recent is not None and not windowed:
        # windowSeconds was removed: failures that had left the window do not return.
        forgiven = max(forgiven or 0, restarts.failures - len(budget.recent))
    return budget.evolve(
        forgiven=forgiven,
        at_same_step=None if cause.step is None else increment(at_step),
        out_of_memory=increment(budget.out_of_memory or 0) if cause.out_of_memory else None,
        recent=[*_recent(budget, recovery, now), now] if windowed else None,
    )


def _used(restarts: Restarts, budget: RestartBudget, recovery: Recovery, now: datetime) -> int:
    """Return the number of these failures that count towards `maxRestarts` now."""
    if recovery.window_seconds is not None:
        return len(_recent(budget, recovery, now))
    # A status that was edited by hand may hold any number.
    return max(0, restarts.failures - (budget.forgiven or 0))


def _recent(budget: RestartBudget, recovery: Recovery, now: datetime) -> Sequence[datetime]:
    """Return the times of the failures within `windowSeconds`."""
    window = timedelta(seconds=recovery.window_seconds or 0)
    return [time for time in budget.recent or () if now - time < window][-recovery.max_restarts - 1 :]


def _last_failure(job: JobView, cause: Cause, now: datetime) -> LastFailure:
    pod = cause.pod
    if pod is None:
        raise ValueError(f"a counted failure needs a pod: {cause}")
    end = cause.failed_exit
    why = end or pod.disruption or pod.issue or PodIssue(cause.reason, "")
    message, at = why.message, pod
    rank = end.rank if end else None
    if not is_worker(pod.index):
        # The number of a rank would be taken for a worker's.
        rank = None
    elif rank is None and job.processes == 1:
        rank = job.ranks_of(pod.index).start
    if culprit := cause.culprit:
        at, rank = culprit.pod, culprit.rank
        message = f"{describe_culprit(culprit)}\n{message}"
    return LastFailure(
        time=end.time if end else pod.disrupted_at or now,
        attempt=job.status.attempt,
        pod=at.name,
        pod_uid=at.uid,
        node=at.node,
        rank=rank,
        exit_code=end.code if end else None,
        step=cause.step,
        reason=why.reason,
        summary=f"exit {end.code}" if end and why.reason == "Error" else why.reason,
        message=message[:MESSAGE_LIMIT],
    )
