"""Resize a group: prepare the workers that join it, then restart it with them, or with fewer for lack of capacity. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainyard.api.base import increment
from trainyard.api.internal_status import Joining
from trainyard.api.reasons import Reason
from trainyard.api.roles import is_worker
from trainyard.api.status import ConditionType as C, StatusChanges
from trainyard.domain.decisions import Action, CreateWorker, Event, Restart
from trainyard.domain.recovery.restart_scope import choose_resized_group
from trainyard.domain.scaling.group_size import (
    capacity_timeout_expired,
    capacity_timeout_left,
    has_failed,
    is_scheduled,
    join_timeout_left,
    keep,
    largest_scheduled_size,
    may_scale_up,
    scale_up_cooldown_left,
)
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.wording import counted


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """What a group does for the workers that join it, in a reconcile that keeps the attempt."""

    changes: StatusChanges
    """The changes of the joining workers in the status. They are stored before anything else is done."""
    events: Sequence[Event]
    actions: Sequence[Action]
    """The creations of their pods."""
    message: str
    """What they wait for; empty where none is to join."""
    waits: Sequence[float]
    """The seconds until each timeout of the group's size."""


def scale_up(snapshot: Snapshot, now: datetime) -> ScaleUp:
    """Return what the group does for the workers that join it."""
    cooldown, left = scale_up_cooldown_left(snapshot, now), join_timeout_left(snapshot, now)
    waits = [capacity_timeout_left(snapshot, now) or timedelta()]
    if snapshot.size.scale_up_pending:
        waits += [left, cooldown]
    changes = _joining_update(snapshot, now)
    return ScaleUp(
        changes,
        scale_up_events(snapshot, changes),
        _create_joining_workers(snapshot),
        _resizing_message(snapshot, cooldown, left, now) if snapshot.size.scale_up_pending else "",
        [wait.total_seconds() for wait in waits if wait > timedelta()],
    )


def _joining_update(snapshot: Snapshot, now: datetime) -> StatusChanges:
    """Return the status changes on joining workers; empty where the status is up to date."""
    before, size = snapshot.job.status.internal.joining, snapshot.size
    if not size.scale_up_pending:
        return _joining_ended(snapshot)
    if any(map(has_failed, snapshot.joining)):
        # A group that is not elastic restarts with them instead. All are tried again after the cooldown: the group does not stop for workers that failed before they joined.
        return {
            "joining": Joining(
                current_size=size.current, target_size=size.current, attempt=snapshot.job.status.attempt
            ),
            "scale_up_paused_since": now,
        }
    after = _joining(snapshot, now)
    return {} if after == before else {"joining": after}


def _joining_ended(snapshot: Snapshot) -> StatusChanges:
    """Return the changes once no worker is to join any more: the status names their attempt until their pods are gone."""
    before = snapshot.job.status.internal.joining
    if before is None:
        return {}
    pods_left = any(is_worker(pod.index) and pod.index >= before.current_size for pod in snapshot.pods)
    unused = Joining(current_size=before.current_size, target_size=before.current_size, attempt=before.attempt)
    after = unused if pods_left else None
    return {} if after == before else {"joining": after}


def _joining(snapshot: Snapshot, now: datetime) -> Joining:
    """Return the joining workers as the status has to name them."""
    before, size = snapshot.job.status.internal.joining, snapshot.size
    narrower = snapshot.job.spec.elastic is not None and size.current < size.target < size.allowed
    requested, since = size.allowed if narrower else None, _ready_since(snapshot, now)
    if before is not None and (before.current_size, before.target_size) == (size.current, size.target):
        return before.evolve(ready_since=since, requested_size=requested)
    same = before is not None and before.current_size == size.current
    return Joining(
        current_size=size.current,
        target_size=size.target,
        attempt=before.attempt if before and same else snapshot.job.status.attempt,
        # The join timeout starts again for a smaller target, and continues where another size was requested.
        ready_since=since if same and not narrower else None,
        requested_size=requested,
    )


def scale_up_events(snapshot: Snapshot, changed: StatusChanges) -> Sequence[Event]:
    """Return the event with which a scale-up starts, or fails."""
    after, before = changed.get("joining"), snapshot.job.status.internal.joining
    if "scale_up_paused_since" in changed:
        failed = next(filter(has_failed, snapshot.joining))
        note = f"worker {failed.index} (pod {failed.name}) exited before it joined; the group continues without it"
        return [Event("Warning", Reason.WORKERS_JOINING, note)]
    more = after.target_size - after.current_size if after else 0
    known = (
        before is not None
        and after is not None
        and (before.current_size, before.target_size) == (after.current_size, after.target_size)
    )
    if after is None or not more or known:
        return []
    why = "scaling up" if snapshot.job.spec.elastic else "replicas was raised: scaling up"
    note = (
        f"{why} from {after.current_size} to {counted(after.target_size, 'worker')};"
        f" the group trains until {counted(more, 'joining worker')} {'is' if more == 1 else 'are'} ready"
    )
    return [Event("Normal", Reason.WORKERS_JOINING, note)]


def _create_joining_workers(snapshot: Snapshot) -> Sequence[Action]:
    """Return the actions that create the pods of joining workers."""
    joining = snapshot.job.status.internal.joining
    if joining is None or not snapshot.size.scale_up_pending:
        return []
    if not may_scale_up(snapshot):
        # They would take the node for which a worker of the group waits.
        return []
    present = {pod.index for pod in snapshot.joining}
    return [
        CreateWorker(i, joining.attempt, joining.target_size)
        for i in range(joining.current_size, joining.target_size)
        if i not in present
    ]


def _resizing_message(snapshot: Snapshot, cooldown: timedelta, left: timedelta, now: datetime) -> str:
    """Return the message of the condition Resizing: what the joining workers wait for."""
    current, target, allowed = snapshot.size.current, snapshot.size.target, snapshot.size.allowed
    if target == current:
        more = counted(allowed - current, "more worker")
        if cooldown <= timedelta():
            return f"scale-up by {more} is deferred until all current workers are scheduled"
        return f"scale-up by {more} is deferred until {now + cooldown:%H:%M:%S} UTC (elastic.growAfterSeconds)"
    ready, joining = len(snapshot.prepared_workers), target - current
    blocked = [pod for pod in sorted(snapshot.joining, key=lambda pod: pod.index) if pod.issue]
    why = next((f": pod {pod.name}: {pod.issue.message or pod.issue.reason}" for pod in blocked if pod.issue), "")
    later = f" ({allowed - target} more are requested after that)" if target < allowed else ""
    until = (
        f"; joining workers that are not running by {now + left:%H:%M:%S} UTC are dropped (elastic.shrinkAfterSeconds)"
        if why and left > timedelta()
        else ""
    )
    return (
        f"{ready} of {counted(joining, 'joining worker')} {'is' if 1 in {ready, joining} else 'are'} ready{later}{why};"
        f" the group trains until all are ready{until}"
    )


def _ready_since(snapshot: Snapshot, now: datetime) -> datetime | None:
    """Return since when ready workers wait for other joining ones; None where none is ready, or the group is not elastic."""
    before = snapshot.job.status.internal.joining
    if snapshot.job.spec.elastic is None or not any(map(is_scheduled, snapshot.joining)):
        return None
    if before is not None and before.ready_since is not None:
        # After a change of the leader, the agents have yet to connect.
        return before.ready_since
    return now if snapshot.prepared_workers else None


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
    size, why = _feasible_size(snapshot, now), unschedulable_message(snapshot)
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


def unschedulable_message(snapshot: Snapshot) -> str:
    """Return why workers of the group have no node, as the scheduler or the API server words it."""
    waiting = [pod for pod in snapshot.current if pod.issue and not pod.scheduled]
    if waiting and waiting[0].issue:
        return f"pod {waiting[0].name}: {waiting[0].issue.message or waiting[0].issue.reason}"
    condition = snapshot.job.status.condition(C.RUNNING)
    return condition.message if condition else "their pods do not exist"
