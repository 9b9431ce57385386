"""Times in a status that could not be written now: of a clock that was set back since, or by hand. Nothing is waited for that long. Pure."""

from datetime import datetime, timedelta
from typing import Any

from trainyard.api.status import TrainingJobStatus
from trainyard.domain.recovery.suspect_nodes import REMEMBERED

LONGEST_DELAY = 60
"""Seconds between two attempts."""


def delay_after(count: int) -> int:
    """Seconds before the next attempt: none before the first restart, then 2, 4, 8 … 60 while attempts keep ending early."""
    return 0 if count <= 0 else min(LONGEST_DELAY, 2 ** min(count, 10))


def startup_began(status: TrainingJobStatus) -> datetime | None:
    """Since when the current attempt tries to start, or None where all its workers ran already."""
    if status.running_time or not status.attempt_start_time:
        return None
    return max(status.attempt_start_time, status.retry.not_before or status.attempt_start_time)


def believed(status: TrainingJobStatus, now: datetime) -> TrainingJobStatus:
    """The status with what is yet to come no later than if it were written now; the same one where nothing is."""
    update: dict[str, Any] = {}
    retry, restarts = status.retry, status.restarts
    begin = now + timedelta(seconds=delay_after(retry.count - 1))
    if retry.not_before and retry.not_before > begin:
        update["retry"] = retry.model_copy(update={"not_before": begin})
    if any(time > now for time in restarts.recent or ()):
        recent = [min(time, now) for time in restarts.recent or ()]
        update["restarts"] = restarts.model_copy(update={"recent": recent})
    if status.growth_pause_time and status.growth_pause_time > now:
        update["growth_pause_time"] = now
    if status.joining and status.joining.since and status.joining.since > now:
        update["joining"] = status.joining.model_copy(update={"since": now})
    end = now + REMEMBERED
    if any(node.until > end for node in status.suspect_nodes):
        update["suspect_nodes"] = [
            node.model_copy(update={"until": min(node.until, end)}) for node in status.suspect_nodes
        ]
    return status.model_copy(update=update) if update else status
