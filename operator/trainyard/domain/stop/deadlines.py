"""Enforce the deadlines of a job: for its active time, and for the start of each attempt. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard.api.reasons import Reason
from trainyard.domain.decisions import Fail
from trainyard.domain.progress.goodput import active_time
from trainyard.domain.recovery.suspect_nodes import required
from trainyard.domain.state.snapshot import JobView, Snapshot


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The deadlines that a job has missed, and the seconds until the others."""

    active: Fail | None
    """The failure of a job that has been active for longer than it may."""
    startup: Fail | None
    """The failure of a job whose attempt has not started in time."""
    waits: Sequence[float]
    """The seconds until each deadline that is to come, and until each avoidance of a node expires."""


def check_deadlines(snapshot: Snapshot, now: datetime) -> Deadlines:
    """Return which deadlines of the job are over now."""
    lifecycle, status = snapshot.job.spec.lifecycle, snapshot.job.status
    active, begun = active_time(status, now), _starting_since(snapshot)
    waits = []
    if lifecycle.active_deadline_seconds:
        waits.append(lifecycle.active_deadline_seconds - active.total_seconds())
    if lifecycle.startup_deadline_seconds and begun:
        waits.append(lifecycle.startup_deadline_seconds - (now - begun).total_seconds())
    if status.running_time is None:
        waits += [(node.until - now).total_seconds() for node in required(status.suspect_nodes)]
    return Deadlines(
        _missed(snapshot.job, active), _missed_startup(snapshot, now), [wait for wait in waits if wait > 0]
    )


def _starting_since(snapshot: Snapshot) -> datetime | None:
    """Return since when the group has been starting; None where it has started. Attempts that gave their nodes back are one start."""
    status = snapshot.job.status
    begun, releases = status.starting_since, status.internal.releases
    return min(begun, releases.since) if begun and releases else begun


def _missed(job: JobView, active: timedelta) -> Fail | None:
    limit = job.spec.lifecycle.active_deadline_seconds
    if limit is None or active < timedelta(seconds=limit):
        return None
    message = f"the job was active for longer than lifecycle.activeDeadlineSeconds, which is {limit}"
    return Fail(Reason.DEADLINE_EXCEEDED, message)


def _missed_startup(snapshot: Snapshot, now: datetime) -> Fail | None:
    begun, limit = _starting_since(snapshot), snapshot.job.spec.lifecycle.startup_deadline_seconds
    if not limit or not begun or now - begun < timedelta(seconds=limit):
        return None
    seen = snapshot.health
    why = "; ".join(filter(None, (seen.message, snapshot.size.invalid_because)))
    message = f"not all workers ran within lifecycle.startupDeadlineSeconds, which is {limit}: {why}"
    return Fail(Reason.STARTUP_DEADLINE_EXCEEDED, message)
