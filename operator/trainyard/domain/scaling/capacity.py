"""Fit an elastic group to the capacity of the cluster: continue without unschedulable workers, and scale up again later. Pure.

Workers are numbered from 0 without gaps, in a smaller group too: where worker 1 is unschedulable, the last worker gives up its node.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.recovery.restart_scope import can_join
from trainyard.domain.scaling.group_size import largest_allowed
from trainyard.domain.state.snapshot import UNSCHEDULABLE, PodView, Snapshot


def feasible_size(snapshot: Snapshot, now: datetime) -> int | None:
    """Return the size with which the group continues now because the capacity timeout has expired; None where it keeps its size."""
    # Where the other workers could not join later, all would be restarted for them at once.
    if not capacity_timeout_expired(snapshot, now) or not can_join(snapshot):
        return None
    workers = snapshot.size.desired
    size = _largest_scheduled_size(snapshot, snapshot.joining, workers)
    if size is None:
        return None
    return size if size < workers or snapshot.joining else None


def capacity_timeout_expired(snapshot: Snapshot, now: datetime) -> bool:
    """Return whether workers of the group have been unschedulable for `elastic.shrinkAfterSeconds`."""
    left = _capacity_timeout_left(snapshot, now)
    return left is not None and left <= timedelta()


def is_scheduled(pod: PodView) -> bool:
    """Return whether the pod has a node, or needs none any more."""
    return pod.scheduled or pod.ended


def all_scheduled(snapshot: Snapshot) -> bool:
    """Return whether all workers of the group have a node."""
    return sum(map(is_scheduled, snapshot.current)) >= snapshot.size.current


def unschedulable_message(snapshot: Snapshot) -> str:
    """Return why workers of the group have no node, as the scheduler or the API server words it."""
    waiting = [pod for pod in snapshot.current if pod.issue and not pod.scheduled]
    if waiting and waiting[0].issue:
        return f"pod {waiting[0].name}: {waiting[0].issue.message or waiting[0].issue.reason}"
    condition = snapshot.job.status.condition(C.RUNNING)
    return condition.message if condition else "their pods do not exist"


def target_size(snapshot: Snapshot, now: datetime) -> int:
    """Return the size that the group gets with the joining workers: the allowed one, or as many as are scheduled after the timeout."""
    allowed, joining = snapshot.size.allowed, snapshot.job.status.internal.joining
    elastic = snapshot.job.spec.elastic
    if elastic is None or joining is None or joining.current_size != snapshot.size.current:
        return allowed
    # Where fewer workers were requested first, the rest is requested when the group has scaled up.
    limit = min(joining.target_size, allowed)
    fewer = largest_allowed(snapshot.job.spec, limit) if joining.requested_size == allowed else None
    requested = fewer if fewer and fewer > joining.current_size else allowed
    if (
        joining.ready_since is None
        or join_timeout_left(snapshot, now) > timedelta()
        or not _schedulability_known(snapshot)
    ):
        return requested
    # An unschedulable worker takes over the node of a higher index. A scheduled worker that does not start caps the size at its index.
    stuck = [pod.index for pod in snapshot.joining if pod.scheduled and pod.issue and not pod.running]
    usable = [pod for pod in snapshot.joining if pod.index not in stuck]
    return _largest_scheduled_size(snapshot, usable, min([requested, *stuck]), joining.current_size) or requested


def join_timeout_left(snapshot: Snapshot, now: datetime) -> timedelta:
    """Return how much longer ready workers wait for joining workers that are unschedulable or do not start."""
    elastic, joining = snapshot.job.spec.elastic, snapshot.job.status.internal.joining
    if elastic is None or joining is None or joining.ready_since is None:
        return timedelta()
    return joining.ready_since + timedelta(seconds=elastic.shrink_after_seconds) - now


def scale_up_cooldown_left(snapshot: Snapshot, now: datetime) -> timedelta:
    """Return how much longer an elastic group keeps its size after its last resize, or after joining workers have failed."""
    elastic, since = snapshot.job.spec.elastic, snapshot.job.status.internal.scale_up_paused_since
    if elastic is None or since is None:
        return timedelta()
    return since + timedelta(seconds=elastic.grow_after_seconds) - now


def deadlines(snapshot: Snapshot, now: datetime) -> Sequence[float]:
    """Return the seconds until each timeout of the group's size expires."""
    left = [_capacity_timeout_left(snapshot, now) or timedelta()]
    if snapshot.size.scale_up_pending:
        left += [join_timeout_left(snapshot, now), scale_up_cooldown_left(snapshot, now)]
    return [wait.total_seconds() for wait in left if wait > timedelta()]


def _capacity_timeout_left(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """Return how much longer the group waits for its unschedulable workers; None where there are none, or it is not elastic."""
    spec, start = snapshot.job.spec, snapshot.job.status.starting_since
    if spec.elastic is None or start is None or not _unschedulable_workers(snapshot):
        return None
    return start + timedelta(seconds=spec.elastic.shrink_after_seconds) - now


def _largest_scheduled_size(snapshot: Snapshot, joining: Sequence[PodView], most: int, above: int = 0) -> int | None:
    """Return the largest allowed size, up to `most`, on the nodes of the group and of `joining`; None where none exceeds `above`."""
    elastic = snapshot.job.spec.elastic
    reserved = (elastic.on_demand_replicas if elastic else None) or 0
    scheduled = [pod.index for pod in (*snapshot.current, *joining) if is_scheduled(pod)]
    on_demand = sum(index < reserved for index in scheduled)
    # The other workers may have spot nodes, which the first ones must not use. They give these up only where nothing else is possible.
    for capacity in (on_demand if on_demand < reserved else len(scheduled), len(scheduled)):
        size = largest_allowed(snapshot.job.spec, min(capacity, most))
        if size is not None and size > above:
            return size
    return None


def _schedulability_known(snapshot: Snapshot) -> bool:
    """Return whether the whole group is scheduled, and the scheduler has handled all joining workers."""
    return all_scheduled(snapshot) and all(is_scheduled(pod) or _is_unschedulable(pod) for pod in snapshot.joining)


def _unschedulable_workers(snapshot: Snapshot) -> list[int]:
    """Return the workers of the group without capacity; none while the scheduler has not handled one of them yet."""
    status, pods = snapshot.job.status, {pod.index: pod for pod in snapshot.current}
    running = status.condition(C.RUNNING)
    over_quota = running is not None and running.status == "False" and running.reason == Reason.QUOTA_EXCEEDED
    missing = [i for i in range(snapshot.size.desired) if i not in pods]
    pending = [pod for pod in pods.values() if not is_scheduled(pod)]
    if (missing and not over_quota) or not all(map(_is_unschedulable, pending)):
        return []
    return sorted([*missing, *(pod.index for pod in pending)])


def _is_unschedulable(pod: PodView) -> bool:
    return pod.issue is not None and pod.issue.reason == UNSCHEDULABLE
