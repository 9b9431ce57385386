"""How the end of an attempt is counted, and who is named for it. Pure."""

from datetime import datetime

from trainyard.api.status import LastFailure, StatusChanges
from trainyard.domain.recovery.failure_rules import restarts_after
from trainyard.domain.recovery.root_cause import Cause, blame
from trainyard.domain.state.observe import MESSAGE_LIMIT
from trainyard.domain.state.rank_layout import processes
from trainyard.domain.state.snapshot import JobView, PodIssue


def ended(job: JobView, cause: Cause, now: datetime) -> StatusChanges:
    """The end of the attempt, counted by its cause."""
    restarts, budget = restarts_after(job.status, job.spec.recovery, cause, now)
    update: StatusChanges = {"restarts": restarts, "restart_budget": budget}
    if cause.charged:
        update["last_failure"] = _last_failure(job, cause, now)
    return update


def _last_failure(job: JobView, cause: Cause, now: datetime) -> LastFailure:
    pod = cause.pod
    if pod is None:
        raise ValueError(f"what is charged has a pod: {cause}")
    end = pod.exit if cause.failed else None
    why = end or pod.disruption or pod.issue or PodIssue(cause.reason, "")
    message, at = why.message, pod
    rank = end.rank if end else None
    if rank is None and processes(job.spec) == 1:
        rank = pod.index
    if guilty := cause.culprit:
        at, rank = guilty.pod, guilty.rank
        message = f"{blame(guilty)}\n{message}"
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
        message=message[:MESSAGE_LIMIT],
    )
