"""Decide the size of the group: what the spec allows, what the cluster has capacity for, and which joining workers are ready. Pure.

Workers are numbered from 0 without gaps, in a smaller group too: where worker 1 is unschedulable, the last worker gives up its node.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import gcd, lcm

from trainyard.api.constants import ROLE_WORKER
from trainyard.api.internal_status import Joining
from trainyard.api.roles import is_worker
from trainyard.api.spec import RANKS_FIT, TrainingJobSpec
from trainyard.domain.state.snapshot import GroupSize, JobView, Snapshot
from trainyard.domain.state.worker_views import UNSCHEDULABLE, PodView
from trainyard.domain.wording import counted


def decide_size(snapshot: Snapshot, now: datetime) -> GroupSize:
    """Return the group's size for this reconcile."""
    size = _gated_size(snapshot, now)
    why = indivisible(snapshot.job, size.desired)
    return replace(size, smallest=_smallest_allowed(snapshot.job), indivisible_because=why)


def _gated_size(snapshot: Snapshot, now: datetime) -> GroupSize:
    """Return the size of a group that keeps its workers until the joining ones are ready, or one of them has failed.

    Where new workers cannot join the existing pods, nothing is gated: all pods are created again.
    """
    decided = allowed_size(snapshot)
    snapshot = replace(snapshot, decided_size=decided)
    status, current, allowed = snapshot.job.status, decided.current, decided.allowed
    launched = status.internal.launched_attempt > 0 or status.internal.joining is not None
    # During elastic.growAfterSeconds, several requests become one change.
    cooldown = scale_up_cooldown_left(snapshot, now) > timedelta()
    if allowed <= current or not launched or not (snapshot.joinable or cooldown):
        return decided
    # Workers that are joining already continue. But none takes a node that the group itself has requested in vain.
    joining = status.internal.joining
    requested = joining is not None and joining.current_size == current < joining.target_size
    kept, limits = keep(decided, current), decided.limited_because or _why_outside_limits(snapshot)
    stays = (cooldown and not requested) or capacity_timeout_expired(replace(snapshot, decided_size=kept), now)
    target = current if stays else target_size(snapshot, now)
    if target > current and may_scale_up(snapshot) and _joining_settled(snapshot, range(current, target)):
        return keep(decided, target)
    return replace(kept, target=target, limited_because=limits)


def target_size(snapshot: Snapshot, now: datetime) -> int:
    """Return the size that the group gets with the joining workers: the allowed one, or as many as are scheduled after the timeout."""
    joining, elastic = snapshot.job.status.internal.joining, snapshot.job.spec.elastic
    if elastic is None or joining is None or joining.current_size != snapshot.size.current:
        return snapshot.size.allowed
    requested = _requested_size(snapshot, joining)
    waits = joining.ready_since is None or join_timeout_left(snapshot, now) > timedelta()
    if waits or not _schedulability_known(snapshot):
        return requested
    # An unschedulable worker takes over the node of a higher index. A scheduled worker that does not start caps the size at its index.
    stuck = [pod.index for pod in snapshot.joining if pod.scheduled and pod.issue and not pod.running]
    usable = [pod for pod in snapshot.joining if pod.index not in stuck]
    return largest_scheduled_size(snapshot, usable, min([requested, *stuck]), joining.current_size) or requested


def _requested_size(snapshot: Snapshot, joining: Joining) -> int:
    """Return the size for which workers are requested. Where fewer were requested first, the rest follows the scale-up."""
    allowed = snapshot.size.allowed
    if joining.requested_size != allowed:
        return allowed
    fewer = largest_allowed(snapshot.job, min(joining.target_size, allowed))
    return fewer if fewer and fewer > joining.current_size else allowed


def allowed_size(snapshot: Snapshot) -> GroupSize:
    """Return the group's size where all allowed workers are created at once: a size that is not allowed is not followed.

    An elastic group gets the next smaller allowed size, or the smallest of all. Any other group keeps the size for which
    it was created, and is recovered at it; where there is none yet, no worker is created.
    """
    job, size = snapshot.job, snapshot.size
    granted = _granted(job, size.requested)
    if granted < size.requested and (fits := largest_allowed(job, granted)):
        why = f"replicas is {size.requested}, and the queue has admitted {counted(granted, 'worker')}"
        return replace(_limited(job.spec, size, fits), limited_because=f"{why}: the group has {fits}")
    allowed = largest_allowed(job, size.requested)
    why, unstartable = indivisible(job, size.requested), indivisible(job, size.current)
    if allowed is None and not unstartable:
        allowed = _smallest_allowed(job)
    if allowed is not None:
        return size if allowed == size.requested else _limited(job.spec, size, allowed)
    if not why:
        return size
    group = f"until then the group keeps its {counted(size.current, 'worker')}"
    then = "no worker is started" if unstartable else group
    return replace(keep(size, size.current), allowed=size.current, invalid_because=f"{why}; {then}")


def _granted(job: JobView, requested: int) -> int:
    """Return the workers for which an elastic job has quota. Any other job waits in its queue again where it needs more."""
    admission = job.status.internal.admission if job.spec.elastic else None
    workers = admission.of_role(ROLE_WORKER) if admission else None
    return requested if workers is None else min(requested, workers.count)


def largest_allowed(job: JobView, workers: int) -> int | None:
    """Return the largest allowed size of an elastic group with at most so many workers; None where there is none.

    A copy of the model is never split.
    """
    spec = job.spec
    if spec.elastic is None:
        return None
    whole = spec.parallelism.ranks if spec.parallelism else 1
    unit = whole // gcd(whole, job.processes)
    if spec.elastic.sizes:
        return max((n for n in spec.elastic.sizes if n <= workers and n % unit == 0), default=None)
    unit = lcm(unit, spec.elastic.multiple_of)
    size = min(workers, spec.elastic.highest) // unit * unit
    return size if size >= spec.elastic.lowest else None


def indivisible(job: JobView, workers: int) -> str:
    """Return why the ranks of so many workers cannot be divided into whole copies of the model; empty where they can.

    The API server rejects numbers that do not fit, but it cannot count the accelerators behind `processesPerReplica: auto`.
    """
    split, each = job.spec.parallelism, job.processes
    if split is None or workers * each % split.ranks == 0:
        return ""
    one_copy = f"{split.tensor} x {split.pipeline} x {split.context} is {split.ranks}"
    return f"{RANKS_FIT}: {workers} x {each} is {workers * each}, and {one_copy}"


def _smallest_allowed(job: JobView) -> int | None:
    """Return the smallest allowed size of an elastic group; None where there is none."""
    bounds = job.spec.elastic
    if bounds is None:
        return None
    sizes = bounds.sizes or range(bounds.lowest, bounds.highest + 1)
    return next((size for size in sizes if largest_allowed(job, size) == size), None)


def keep(size: GroupSize, workers: int) -> GroupSize:
    """Return the size of a group that must have this number of workers now, and to which no others join."""
    return replace(size, desired=workers, target=workers)


def _why_outside_limits(snapshot: Snapshot) -> str:
    """Return that a group which waits to scale up has a size that `elastic` excludes since it was changed; empty otherwise."""
    job, size = snapshot.job, snapshot.size.current
    if job.spec.elastic is None or largest_allowed(job, size) == size:
        return ""
    return f"the group has {counted(size, 'worker')}, which elastic does not allow: it keeps them until it can scale up"


def _limited(spec: TrainingJobSpec, size: GroupSize, workers: int) -> GroupSize:
    current = next(filter(None, size.created_for), workers)
    limited = replace(size, allowed=workers, current=current, limited_because=_why_limited(spec, workers))
    return keep(limited, workers)


def _why_limited(spec: TrainingJobSpec, workers: int) -> str:
    elastic = spec.elastic
    if elastic and elastic.sizes:
        allowed = f"elastic.sizes are {', '.join(map(str, elastic.sizes))}"
    else:
        allowed = f"elastic.multipleOf is {elastic.multiple_of if elastic else 1}"
    whole = f", and one copy of the model needs {spec.parallelism.ranks} ranks" if spec.parallelism else ""
    return f"replicas is {spec.replicas}, and {allowed}{whole}: the group has {counted(workers, 'worker')}"


def largest_scheduled_size(snapshot: Snapshot, joining: Sequence[PodView], most: int, above: int = 0) -> int | None:
    """Return the largest allowed size, up to `most`, on the nodes of the group and of `joining`; None where none exceeds `above`."""
    elastic = snapshot.job.spec.elastic
    reserved = (elastic.on_demand_replicas if elastic else None) or 0
    scheduled = [pod.index for pod in (*snapshot.current_workers, *joining) if is_scheduled(pod)]
    on_demand = sum(index < reserved for index in scheduled)
    # The other workers may have spot nodes, which the first ones must not use. They give these up only where nothing else is possible.
    for capacity in (on_demand if on_demand < reserved else len(scheduled), len(scheduled)):
        size = largest_allowed(snapshot.job, min(capacity, most))
        if size is not None and size > above:
            return size
    return None


def capacity_timeout_expired(snapshot: Snapshot, now: datetime) -> bool:
    """Return whether workers of the group have been unschedulable for `elastic.shrinkAfterSeconds`."""
    left = capacity_timeout_left(snapshot, now)
    return left is not None and left <= timedelta()


def capacity_timeout_left(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """Return how much longer the group waits for its unschedulable workers; None where there are none, or it is not elastic."""
    spec, start = snapshot.job.spec, snapshot.job.status.starting_since
    if spec.elastic is None or start is None or not without_capacity(snapshot, only=is_worker):
        return None
    return start + timedelta(seconds=spec.elastic.shrink_after_seconds) - now


def without_capacity(snapshot: Snapshot, *, only: Callable[[int], bool] = lambda _: True) -> list[int]:
    """Return the members without capacity; none while the scheduler has not handled one of them yet."""
    missing = [index for index in snapshot.missing if only(index)]
    pending = [pod for pod in snapshot.current if only(pod.index) and not is_scheduled(pod)]
    if (missing and not snapshot.job.over_quota) or not all(map(_is_unschedulable, pending)):
        return []
    return sorted([*missing, *(pod.index for pod in pending)])


def _is_unschedulable(pod: PodView) -> bool:
    return pod.issue is not None and pod.issue.reason == UNSCHEDULABLE


def _schedulability_known(snapshot: Snapshot) -> bool:
    """Return whether the whole group is scheduled, and the scheduler has handled all joining workers."""
    return _all_scheduled(snapshot) and all(is_scheduled(pod) or _is_unschedulable(pod) for pod in snapshot.joining)


def is_scheduled(pod: PodView) -> bool:
    """Return whether the pod has a node, or needs none any more."""
    return pod.scheduled or pod.ended


def may_scale_up(snapshot: Snapshot) -> bool:
    """Return whether an elastic group has nodes for all of its own workers; any other group may always scale up."""
    return snapshot.job.spec.elastic is None or _all_scheduled(snapshot)


def _all_scheduled(snapshot: Snapshot) -> bool:
    """Return whether all workers of the group have a node."""
    return sum(map(is_scheduled, snapshot.current_workers)) >= snapshot.size.current


def _joining_settled(snapshot: Snapshot, indexes: range) -> bool:
    """Return whether the joining workers with these indexes are ready, or a group that is not elastic has lost one."""
    if any(map(has_failed, snapshot.joining)):
        return snapshot.job.spec.elastic is None
    return snapshot.prepared_workers.issuperset(indexes)


def has_failed(pod: PodView) -> bool:
    """Return whether the worker cannot join any more. A deleted pod is created again; a sidecar may outlive the main container."""
    return pod.deletion_time is None and pod.has_stopped


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
