"""Enforce the deadlines of a job: for its active time, and for the start of each attempt. Pure."""

from datetime import datetime, timedelta

from trainyard.api.reasons import Reason
from trainyard.domain.decisions import Fail
from trainyard.domain.recovery import stored_times, suspect_nodes
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.worker_state import health


def missed(job: JobView, now: datetime) -> Fail | None:
    """Return the failure of a job that has been active for longer than it may."""
    if not overdue(job, now):
        return None
    limit = job.spec.lifecycle.active_deadline_seconds
    message = f"the job was active for longer than lifecycle.activeDeadlineSeconds, which is {limit}"
    return Fail(Reason.DEADLINE_EXCEEDED, message)


def overdue(job: JobView, now: datetime) -> bool:
    """Return whether the job has been active for longer than it may."""
    limit = job.spec.lifecycle.active_deadline_seconds
    return limit is not None and stored_times.active_time(job.status, now) >= timedelta(seconds=limit)


def missed_startup(snapshot: Snapshot, now: datetime) -> Fail | None:
    """Return the failure of a job whose attempt has not started in time."""
    job, begun = snapshot.job, stored_times.startup_began(snapshot.job.status)
    limit = job.spec.lifecycle.startup_deadline_seconds
    if not limit or not begun or now - begun < timedelta(seconds=limit):
        return None
    why = "; ".join(
        filter(None, (health(snapshot.current, snapshot.size.desired).message, snapshot.size.invalid_because))
    )
    message = f"not all workers ran within lifecycle.startupDeadlineSeconds, which is {limit}: {why}"
    return Fail(Reason.STARTUP_DEADLINE_EXCEEDED, message)


def waits(snapshot: Snapshot, now: datetime) -> list[float]:
    """Return the seconds until each deadline of the job, and until each avoidance of a node expires."""
    lifecycle, status = snapshot.job.spec.lifecycle, snapshot.job.status
    waits = []
    if lifecycle.active_deadline_seconds:
        waits.append(lifecycle.active_deadline_seconds - stored_times.active_time(status, now).total_seconds())
    if lifecycle.startup_deadline_seconds and (begun := stored_times.startup_began(status)):
        waits.append(lifecycle.startup_deadline_seconds - (now - begun).total_seconds())
    if status.running_time is None:
        waits += [
            (node.until - now).total_seconds()
            for node in suspect_nodes.required(status.suspect_nodes)
            if node.until > now
        ]
    return waits
