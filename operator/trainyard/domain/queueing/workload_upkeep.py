"""Decide what is written to the Workload of a job, by what the job does. Pure.

Each change is one patch of the version that was seen. A stale one fails, and the next reconcile decides again.
"""

from collections.abc import Sequence
from dataclasses import replace

from trainyard.api.constants import ROLE_WORKER
from trainyard.api.internal_status import Admission, AdmittedPods, PodGroup
from trainyard.api.roles import is_worker
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import ChangeWorkload, CreateWorkload, DeleteWorkload, WorkloadAction
from trainyard.domain.state.queue_hold import fits, wanted_pod_sets
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.workload import FINALIZER, Assignment, WorkloadView
from trainyard.domain.workload_changes import (
    Activate,
    Adapt,
    DropFinalizer,
    Finish,
    ReclaimPods,
    ReleaseQuota,
    ReportPodsReady,
    WorkloadChange,
)

REQUEUED_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
"""Kueue's reasons for evictions after which the Workload may be admitted again at once. After others, Kueue decides when."""
NOT_READY = "Not all pods are ready or succeeded"
READY = "All pods reached readiness and the workload is running"
RECOVERING = "At least one pod has failed, waiting for recovery"
"""Kueue's own messages of the condition PodsReady."""


def while_waiting(snapshot: Snapshot, *, pods_ended: bool) -> Sequence[WorkloadAction]:
    """Return what the Workload of a job needs that waits in its queue: to exist, to fit the job, to give quota back."""
    queueing = snapshot.queueing
    if queueing is None or not queueing.readable:
        return []
    removed = _removed(queueing.workloads) if pods_ended else []
    workload = queueing.workload
    if workload is None:
        enters = pods_ended and _may_enter(snapshot)
        return [CreateWorkload(wanted_pod_sets(snapshot), _gang(snapshot))] if enters else []
    if workload.deleting or workload.finished:
        return removed
    if pods_ended and not _may_enter(snapshot):
        return [*removed, DeleteWorkload(workload.name, workload.uid)]
    if pods_ended and workload.reserved:
        if workload.evicted:
            return [*removed, _release(workload)]
        return [*removed, *([] if fits(snapshot, workload) else [DeleteWorkload(workload.name, workload.uid)])]
    return [*removed, *([] if workload.reserved else _adapted(snapshot, workload))]


def while_suspended(snapshot: Snapshot, *, suspend: bool, pods_ended: bool) -> Sequence[WorkloadAction] | None:
    """Return what the Workload of a suspended job needs; None once the job can resume. `suspend`: whether the user still wants that.

    It keeps its place as an object that is not active: Kueue evicts it, and gets the quota back as after any eviction.
    """
    queueing = snapshot.queueing
    workload = queueing.workload if queueing else None
    if workload is not None and not (workload.finished or workload.deleting):
        if workload.evicted and workload.reserved:
            return [_release(workload)] if pods_ended else []
        if not (suspend or workload.active) and (changed := _adapted(snapshot, workload)):
            # First: Kueue may admit it as soon as it is active.
            return changed
        if workload.active is suspend:
            return [_change(workload, Activate(active=not suspend))]
    removed = _removed(queueing.workloads) if queueing and pods_ended else []
    return removed if suspend else None


def while_running(snapshot: Snapshot) -> Sequence[WorkloadAction]:
    """Return what the Workload of a job that may run must say: whether its pods are ready, and which do not come back."""
    queueing = snapshot.queueing
    workload = queueing.workload if queueing else None
    if snapshot.job.queue is None:
        # It has no queue any more: it runs on, and its quota is free.
        return at_the_end(snapshot, pods_ended=True)
    if queueing is None or not queueing.readable or workload is None or not workload.admitted:
        return []
    actions: list[WorkloadAction] = []
    if ready := _pods_ready(snapshot, workload):
        actions.append(_change(workload, ready))
    elif free := _reclaimed(snapshot, workload):
        actions.append(_change(workload, free))
    return actions


def at_the_end(snapshot: Snapshot, *, pods_ended: bool) -> Sequence[WorkloadAction]:
    """Return what becomes of the Workloads of a job that ends: they are finished, once no pod runs, and then left to Kubernetes."""
    queueing, job = snapshot.queueing, snapshot.job
    if queueing is None or not pods_ended:
        return []
    actions: list[WorkloadAction] = []
    for workload in queueing.workloads:
        if job.queue is None and not workload.deleting and not job.status.finished:
            actions.append(DeleteWorkload(workload.name, workload.uid))
        elif workload.finished or job.deleting or not job.status.finished:
            actions += _removed([workload], even_if_kept=True)
        else:
            actions.append(_change(workload, _finish(snapshot)))
    return actions


def _change(workload: WorkloadView, change: WorkloadChange) -> ChangeWorkload:
    return ChangeWorkload(workload.name, workload.uid, workload.resource_version, change)


def _removed(workloads: Sequence[WorkloadView], *, even_if_kept: bool = False) -> list[WorkloadAction]:
    """Return the changes by which Kubernetes can delete these Workloads."""
    held = [each for each in workloads if FINALIZER in each.finalizers and (each.deleting or even_if_kept)]
    return [_change(each, DropFinalizer()) for each in held]


def _release(workload: WorkloadView) -> ChangeWorkload:
    evicted = workload.condition("Evicted")
    reason, message = (evicted.reason, evicted.message) if evicted else ("Pending", "")
    return _change(workload, ReleaseQuota(reason, message, requeued=reason in REQUEUED_AT_ONCE))


def _adapted(snapshot: Snapshot, workload: WorkloadView) -> list[WorkloadAction]:
    """Return the change by which a Workload without quota asks for what the job needs now; nothing where it does."""
    if workload.reclaimable:
        # A new attempt needs all pods again.
        return [_change(workload, ReclaimPods(()))]
    if fits(snapshot, workload) and _asks_the_same(snapshot, workload):
        return []
    return [replace(_change(workload, Adapt()), pod_sets=wanted_pod_sets(snapshot), gang=_gang(snapshot))]


def _may_enter(snapshot: Snapshot) -> bool:
    """Return whether pods would follow from an admission. Without its gang scheduler, a job would keep quota for nothing."""
    return not snapshot.gang.unavailable_because


def _gang(snapshot: Snapshot) -> PodGroup | None:
    """Return the PodGroup that the pods will have, which names their scheduler."""
    return snapshot.job.status.pod_group or snapshot.gang.pod_group


def _asks_the_same(snapshot: Snapshot, workload: WorkloadView) -> bool:
    """Return whether the Workload names the queue and the class of the job."""
    request = snapshot.job.queue
    return request is None or (request.queue, request.priority_class) == (workload.queue, workload.priority_class)


def _pods_ready(snapshot: Snapshot, workload: WorkloadView) -> ReportPodsReady | None:
    """Return the condition PodsReady where it changes, by Kueue's rules: a group that has been ready once recovers."""
    before = workload.condition("PodsReady")
    was, ready = before.reason if before else "", snapshot.health.running
    if ready:
        reason = "Recovered" if was in {"WaitForRecovery", "Recovered"} else "Started"
    else:
        reason = "WaitForRecovery" if was in {"Started", "Recovered", "WaitForRecovery"} else "WaitForStart"
    if before is not None and (before.reason, before.holds) == (reason, ready):
        return None
    message = READY if ready else RECOVERING if reason == "WaitForRecovery" else NOT_READY
    return ReportPodsReady(ready, reason, message)


def reduced_admission(snapshot: Snapshot, stored: Admission) -> Admission | None:
    """Return the admission of a group that has become smaller, once it has no more pods; None where nothing changes.

    It is stored before it is reported to Kueue: quota that was given back is not used again. A worker that has succeeded keeps its quota,
    since a new attempt starts with all workers.
    """
    size, workers = snapshot.size, stored.of_role(ROLE_WORKER)
    steady = size.current == size.desired == size.allowed
    if workers is None or not steady or workers.count <= size.allowed:
        return None
    if any(is_worker(pod.index) and pod.index >= size.allowed and not pod.gone for pod in snapshot.pods):
        return None
    smaller = workers.evolve(count=size.allowed)
    return stored.evolve(pods=[smaller if each.role == ROLE_WORKER else each for each in stored.pods])


def _reclaimed(snapshot: Snapshot, workload: WorkloadView) -> ReclaimPods | None:
    """Return the pods that do not come back, by the stored admission, where there are more than reported."""
    stored = snapshot.job.status.internal.admission
    if stored is None or stored.uid != workload.uid:
        return None
    kept, granted = _by_role(stored.pods), _by_role(workload.assignments)
    reported = dict(workload.reclaimable)
    # Kueue subtracts from the pods that were asked for, although it may have admitted fewer.
    free = {
        each.role: each.count - kept[each.role]
        for each in workload.pod_sets
        if kept.get(each.role, each.count) < granted.get(each.role, 0)
    }
    if all(count <= reported.get(role, 0) for role, count in free.items()):
        return None
    return ReclaimPods(tuple((reported | free).items()))


def _by_role(pods: Sequence[AdmittedPods] | Sequence[Assignment]) -> dict[str, int]:
    return {each.role: each.count for each in pods}


def _finish(snapshot: Snapshot) -> Finish:
    status = snapshot.job.status
    succeeded = status.holds(C.COMPLETE)
    end = status.condition(C.COMPLETE if succeeded else C.FAILED)
    return Finish("Succeeded" if succeeded else "Failed", end.message if end else "")
