"""Resize a group: to the requested size, or down to the capacity of the cluster. Pure."""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from trainyard.api.base import increment
from trainyard.api.internal_status import Joining
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import Restart
from trainyard.domain.recovery.restart_scope import choose_resized_group
from trainyard.domain.scaling.group_size import capacity_timeout_expired, keep, largest_scheduled_size
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.wording import counted

if TYPE_CHECKING:
    from trainyard.api.status import StatusChanges


def resize(snapshot: Snapshot, was: int, now: datetime) -> Restart:
    """Return the decision to restart the group with the desired number of workers."""
    elastic, size = snapshot.job.spec.elastic, snapshot.size.desired
    # An elastic group may also change its size by itself, so the reason is not always a new value of `replicas`.
    why = (
        f"the group is resized from {counted(was, 'worker')} to {size}"
        if elastic
        else f"replicas was changed from {was} to {size}"
    )
    return _resized(snapshot, was, Reason.RESIZED, why, None, now)


def fit_to_capacity(snapshot: Snapshot, now: datetime) -> Restart | None:
    """Return the decision to restart the group with fewer workers because the others are unschedulable.

    None where the capacity timeout has not expired. It is also None where the other workers could not join later: then all
    would be restarted for them at once.
    """
    size, why = _feasible_size(snapshot, now), _unschedulable_message(snapshot)
    if size is None or not snapshot.joinable:
        return None
    workers, elastic = snapshot.size.desired, snapshot.job.spec.elastic
    seconds = elastic.shrink_after_seconds if elastic else 0
    message = (
        f"not all {workers} workers were scheduled within {seconds} seconds ({why}): the group continues with {size}"
    )
    joining = Joining(current_size=size, target_size=size, attempt=snapshot.job.status.attempt + 1)
    smaller = replace(snapshot, decided_size=keep(snapshot.size, size))
    return _resized(smaller, workers, Reason.INSUFFICIENT_CAPACITY, message, joining, now)


def _resized(snapshot: Snapshot, was: int, reason: Reason, why: str, joining: Joining | None, now: datetime) -> Restart:
    job, status = snapshot.job, snapshot.job.status
    restarts = status.restarts.evolve(resizes=increment(status.restarts.resizes))
    group, scope = choose_resized_group(snapshot)
    update: StatusChanges = {
        "restarts": restarts,
        "group": group,
        "joining": joining,
        "previous_size": was,
    }
    if job.spec.elastic:
        update["scale_up_paused_since"] = now
    if group and all(each.attempt <= status.attempt for each in group.replacements):
        # No pod has to be created.
        update["launched_attempt"] = status.attempt + 1
    return Restart(reason, why, scope=scope, changes=update, afresh=True)


def _feasible_size(snapshot: Snapshot, now: datetime) -> int | None:
    """Return the size with which the group continues now because the capacity timeout has expired; None where it keeps its size."""
    if not capacity_timeout_expired(snapshot, now):
        return None
    workers = snapshot.size.desired
    size = largest_scheduled_size(snapshot, snapshot.joining, workers)
    if size is None:
        return None
    return size if size < workers or snapshot.joining else None


def _unschedulable_message(snapshot: Snapshot) -> str:
    """Return why workers of the group have no node, as the scheduler or the API server words it."""
    waiting = [pod for pod in snapshot.current if pod.issue and not pod.scheduled]
    if waiting and waiting[0].issue:
        return f"pod {waiting[0].name}: {waiting[0].issue.message or waiting[0].issue.reason}"
    condition = snapshot.job.status.condition(C.RUNNING)
    return condition.message if condition else "their pods do not exist"
