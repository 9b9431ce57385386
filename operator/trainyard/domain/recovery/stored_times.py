"""Clamp stored times that lie in the future. Pure.

A clock that was set back, or an edit by hand, leaves such times. Without the limit the operator would wait for them.
"""

from datetime import datetime, timedelta

from trainyard.api.status import StatusChanges, TrainingJobStatus
from trainyard.domain.recovery.suspect_nodes import SUSPECT_NODE_TTL

MAX_DELAY_SECONDS = 60
"""The longest backoff between two attempts."""
FIRST_RELEASE_DELAY_SECONDS, MAX_RELEASE_DELAY_SECONDS = 45, 720
"""The longest delays after a group gave its nodes back once, and after it did so often."""


def delay_after(count: int) -> int:
    """Return the backoff in seconds: 0 before the first restart, then 2, 4, 8 … 60 while attempts keep ending early."""
    return 0 if count <= 0 else min(MAX_DELAY_SECONDS, 2 ** min(count, 10))


def longest_release_delay(count: int) -> int:
    """Return the longest delay in seconds after a group gave its nodes back so many times: it doubles each time."""
    return 0 if count <= 0 else min(MAX_RELEASE_DELAY_SECONDS, FIRST_RELEASE_DELAY_SECONDS << min(count - 1, 10))


def clamp_future_timestamps(status: TrainingJobStatus, now: datetime) -> StatusChanges:
    """Return the changes after which no time in the status is later than if it were stored now."""
    update: StatusChanges = {**_recovery_times(status, now)}
    joining, paused_since = status.internal.joining, status.internal.scale_up_paused_since
    if paused_since and paused_since > now:
        update["scale_up_paused_since"] = now
    if joining and joining.ready_since and joining.ready_since > now:
        update["joining"] = joining.evolve(ready_since=now)
    return update


def _recovery_times(status: TrainingJobStatus, now: datetime) -> StatusChanges:
    """Return the changes of what is stored of failures: the backoff, the times of failures, the suspect nodes."""
    update: StatusChanges = {}
    backoff, budget, releases = status.internal.backoff, status.internal.restart_budget, status.internal.releases
    longest = max(delay_after(backoff.count - 1), longest_release_delay(releases.count if releases else 0))
    begin = now + timedelta(seconds=longest)
    if backoff.not_before and backoff.not_before > begin:
        update["backoff"] = backoff.evolve(not_before=begin)
    if releases and releases.since > now:
        update["releases"] = releases.evolve(since=now)
    if any(time > now for time in budget.recent or ()):
        recent = [min(time, now) for time in budget.recent or ()]
        update["restart_budget"] = budget.evolve(recent=recent)
    end = now + SUSPECT_NODE_TTL
    if any(node.until > end for node in status.suspect_nodes):
        update["suspect_nodes"] = [node.evolve(until=min(node.until, end)) for node in status.suspect_nodes]
    return update
