"""How long jobs take to start, faults to be noticed, and groups to run again: from the times in their status, which are whole seconds."""

from datetime import datetime

from prometheus_client import CollectorRegistry, Histogram

from trainyard.api.recovery import RestartScope
from trainyard.api.spec import Framework
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.snapshot import JobView

BUCKETS = (1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 90, 120, 300, 600, 1800)
"""Seconds: from an attempt in place to an image of gigabytes."""


class Durations:
    """Counted once for each start and each attempt that ended by itself, by the process that saw it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._startup = Histogram(
            "trainyard_startup_seconds",
            "From when a group was to start to when all its workers ran, recoveries left out",
            ["framework"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._detection = Histogram(
            "trainyard_detection_seconds",
            "From the end of a worker before its time to the decision what to do about it",
            buckets=BUCKETS,
            registry=registry,
        )
        self._recovery = Histogram(
            "trainyard_recovery_seconds",
            "From the end of a worker before its time to when all workers of the next attempt ran, its delay included",
            ["scope"],
            buckets=BUCKETS,
            registry=registry,
        )
        for framework in Framework:
            self._startup.labels(framework)
        for scope in RestartScope:
            self._recovery.labels(scope)

    def moved(self, job: JobView, status: TrainingJobStatus) -> None:
        """The job went from the status it had to `status`."""
        failure, before = status.last_failure, job.status
        if failure is not None and failure != before.last_failure:
            self._detection.observe(
                _seconds(failure.time, status.completion_time or status.internal.attempt_start_time)
            )
        if status.running_time is None or before.running_time is not None:
            return
        if failure is not None and failure.attempt == status.attempt - 1:
            self._recovery.labels(rung_of(status)).observe(_seconds(failure.time, status.running_time))
        elif status.internal.attempt_start_time is not None:
            seconds = _seconds(status.internal.attempt_start_time, status.running_time)
            self._startup.labels(job.spec.framework).observe(seconds)


def rung_of(status: TrainingJobStatus) -> RestartScope:
    """The means by which the current attempt began: whatever has no group that goes on, a changed template say, has all pods made anew."""
    return (
        status.internal.backoff.scope if status.internal.group and status.internal.backoff.scope else RestartScope.GROUP
    )


def _seconds(since: datetime, until: datetime | None) -> float:
    """0 where clocks disagree."""
    return max(0.0, (until - since).total_seconds()) if until else 0.0
