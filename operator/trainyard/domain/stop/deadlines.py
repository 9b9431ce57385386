"""The deadlines that a job sets itself: for the whole, and for the start of each attempt. Pure."""

from datetime import datetime, timedelta

from trainyard.api.reasons import Reason
from trainyard.domain.actions import Plan
from trainyard.domain.recovery import stored_times, suspect_nodes
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.worker_state import health
from trainyard.domain.status import transitions


def overdue(job: JobView, now: datetime) -> bool:
    """Whether it has been active for too long."""
    limit = job.spec.lifecycle.active_deadline_seconds
    return bool(limit) and transitions.active(job.status, now) >= timedelta(seconds=limit or 0)


def late(snapshot: Snapshot, now: datetime) -> Plan | None:
    """The verdict on an attempt that has not started in time."""
    job, begun = snapshot.job, stored_times.startup_began(snapshot.job.status)
    limit = job.spec.lifecycle.startup_deadline_seconds
    if not limit or not begun or now - begun < timedelta(seconds=limit):
        return None
    why = "; ".join(
        filter(None, (health(snapshot.current, snapshot.size.desired).message, snapshot.size.invalid_because))
    )
    message = f"not all workers ran within lifecycle.startupDeadlineSeconds, which is {limit}: {why}"
    return transitions.fail(job, Reason.STARTUP_DEADLINE_EXCEEDED, message, now)


def waits(snapshot: Snapshot, now: datetime) -> list[float]:
    """Seconds until a deadline needs a look."""
    lifecycle, status = snapshot.job.spec.lifecycle, snapshot.job.status
    waits = []
    if lifecycle.active_deadline_seconds:
        waits.append(lifecycle.active_deadline_seconds - transitions.active(status, now).total_seconds())
    if lifecycle.startup_deadline_seconds and (begun := stored_times.startup_began(status)):
        waits.append(lifecycle.startup_deadline_seconds - (now - begun).total_seconds())
    if status.running_time is None:
        waits += [
            (node.until - now).total_seconds()
            for node in suspect_nodes.always(status.suspect_nodes)
            if node.until > now
        ]
    return waits
