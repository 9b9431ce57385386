"""Measure how long jobs take to start, failures to be detected, and groups to run again. The status has whole seconds."""

from datetime import datetime

from prometheus_client import CollectorRegistry, Histogram

from trainyard.api.recovery import RestartScope
from trainyard.api.spec import Framework
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.snapshot import JobView

BUCKETS = (1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 90, 120, 300, 600, 1800)
"""Seconds: from a restart of processes to the pull of an image of gigabytes."""


class Durations:
    """Counted once for each start and each failed attempt, by the process that stored it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._startup = Histogram(
            "trainyard_startup_seconds",
            "Time from the start of a group to when all its workers run, without recoveries",
            ["framework"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._detection = Histogram(
            "trainyard_failure_detection_seconds",
            "Time from a worker failure to the recovery decision",
            buckets=BUCKETS,
            registry=registry,
        )
        self._recovery = Histogram(
            "trainyard_recovery_seconds",
            "Time from a worker failure to when all workers of the next attempt run, with its backoff",
            ["scope"],
            buckets=BUCKETS,
            registry=registry,
        )
        for framework in Framework:
            self._startup.labels(framework)
        for scope in RestartScope:
            self._recovery.labels(scope)

    def status_changed(self, job: JobView, status: TrainingJobStatus) -> None:
        """Observe the change from the job's status to `status`."""
        failure, before = status.last_failure, job.status
        if failure is not None and failure != before.last_failure:
            self._detection.observe(
                _seconds(failure.time, status.completion_time or status.internal.attempt_start_time)
            )
        if status.running_time is None or before.running_time is not None:
            return
        if failure is not None and failure.attempt == status.attempt - 1:
            self._recovery.labels(restart_scope_of(status)).observe(_seconds(failure.time, status.running_time))
        elif status.internal.attempt_start_time is not None:
            seconds = _seconds(status.internal.attempt_start_time, status.running_time)
            self._startup.labels(job.spec.framework).observe(seconds)


def restart_scope_of(status: TrainingJobStatus) -> RestartScope:
    """Return the restart scope that began the current attempt. Without a kept group, for example after a changed
    template, all pods are new.
    """
    internal = status.internal
    return internal.backoff.scope if internal.group and internal.backoff.scope else RestartScope.GROUP


def _seconds(since: datetime, until: datetime | None) -> float:
    """Return the seconds between the two times; 0 if the clocks disagree."""
    return max(0.0, (until - since).total_seconds()) if until else 0.0
