"""Why the pods of a job may not run now: its queue has not admitted it, or wants the quota back. Pure."""

from trainyard.api.reasons import Reason
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.workload import QueueHold, WorkloadView
from trainyard.domain.workload_changes import PodSet

NOT_INSTALLED = (
    "the operator was installed without Kueue, and the queue {queue} is none of Volcano: set kueue.enabled of the chart,"
    " or scheduling.gang to volcano, or remove the queue from the job"
)
NOT_READABLE = (
    "the job waits for the queue {queue}: the operator cannot read Kueue's Workloads; check that Kueue is installed"
)


def queue_hold(snapshot: Snapshot) -> QueueHold | None:
    """Return why the job may have no pods now; None where it may have them, or has no queue."""
    request, queueing = snapshot.job.queue, snapshot.queueing
    if request is None:
        return None
    if queueing is None or not queueing.readable:
        # A job that was admitted goes on: nothing says that the quota was taken back.
        if snapshot.job.status.internal.admission is not None:
            return None
        text = NOT_INSTALLED if queueing is None else NOT_READABLE
        return QueueHold(Reason.QUEUE_UNAVAILABLE, text.format(queue=request.queue))
    if (why := snapshot.gang.unavailable_because) and not snapshot.current:
        # Its quota would be used by no pod.
        return QueueHold(Reason.GANG_UNAVAILABLE, why)
    workload = queueing.workload
    if workload is None:
        return _missing(snapshot)
    return _lost(workload) or _outdated(snapshot, workload) or _waiting(snapshot, workload)


def wanted_pod_sets(snapshot: Snapshot) -> tuple[PodSet, ...]:
    """Return the pods that the job asks for, by role: the workers first."""
    spec, workers = snapshot.job.spec, snapshot.size.allowed
    # Kueue admits one role in part at most. Then it is the workers, of which an elastic job may have fewer.
    fewest = min(spec.elastic.lowest, workers) if spec.elastic else None
    roles = (PodSet(role.name, role.replicas) for role in spec.roles)
    return (PodSet("worker", workers, fewest if fewest != workers else None), *roles)


def fits(snapshot: Snapshot, workload: WorkloadView) -> bool:
    """Return whether the Workload still asks for what the job needs. A smaller group fits: it needs no more quota."""
    if workload.template_hash != snapshot.job.template_hash:
        return False
    wanted = wanted_pod_sets(snapshot)
    if [each.role for each in wanted] != [each.role for each in workload.pod_sets]:
        return False
    if not workload.reserved:
        return wanted == workload.pod_sets
    # An elastic group keeps its admitted size instead.
    needed = wanted[1:] if snapshot.job.spec.elastic else wanted
    held = {each.role: each.count for each in workload.pod_sets}
    stored = snapshot.job.status.internal.admission
    if stored is not None and stored.uid == workload.uid:
        held |= {each.role: each.count for each in stored.pods}
    return all(each.count <= held.get(each.role, 0) for each in needed)


def _missing(snapshot: Snapshot) -> QueueHold:
    request = snapshot.job.queue
    if snapshot.job.status.internal.admission is not None:
        return QueueHold(Reason.WORKLOAD_REPLACED, "the Workload of the job was deleted")
    queue = request.queue if request else ""
    return QueueHold(Reason.WAITING_FOR_QUOTA, f"the job enters the queue {queue}")


def _lost(workload: WorkloadView) -> QueueHold | None:
    if workload.deleting:
        return QueueHold(Reason.WORKLOAD_REPLACED, f"Workload {workload.name} is being deleted")
    if workload.finished:
        end = workload.condition("Finished")
        why = f"{end.reason}: {end.message}" if end else ""
        message = f"Workload {workload.name} was finished ({why}); delete it to enter the queue again"
        return QueueHold(Reason.WORKLOAD_REPLACED, message)
    if not workload.active:
        target = workload.condition("Evicted")
        why = f": {target.message}" if target and target.message else ""
        return QueueHold(Reason.QUEUE_DEACTIVATED, f"Workload {workload.name} is not active{why}")
    return None


def _outdated(snapshot: Snapshot, workload: WorkloadView) -> QueueHold | None:
    if not workload.reserved or fits(snapshot, workload):
        return None
    message = f"the job was changed, and Workload {workload.name} has quota for something else"
    return QueueHold(Reason.WORKLOAD_REPLACED, message)


def _waiting(snapshot: Snapshot, workload: WorkloadView) -> QueueHold | None:
    evicted = workload.condition("Evicted") if workload.evicted else None
    if evicted is not None and workload.reserved:
        return QueueHold(Reason.EVICTED, f"{evicted.reason}: {evicted.message}")
    if workload.admitted:
        return _unusable(snapshot, workload)
    if workload.reserved:
        checks = [f"{c.name} is {c.state}" + (f" ({c.message})" if c.message else "") for c in workload.checks]
        waits = ", ".join(checks) or "the admission"
        return QueueHold(Reason.ADMISSION_CHECKS_PENDING, f"quota is reserved in {workload.cluster_queue}; {waits}")
    why = workload.condition("QuotaReserved")
    where = f"waiting in the queue {workload.queue}"
    return QueueHold(Reason.WAITING_FOR_QUOTA, f"{where}: {why.message}" if why and why.message else where)


def _unusable(snapshot: Snapshot, workload: WorkloadView) -> QueueHold | None:
    """Return why an admission cannot be used. One that is stored was usable."""
    stored, queueing = snapshot.job.status.internal.admission, snapshot.queueing
    if stored is not None and stored.uid == workload.uid:
        return None
    if queueing is not None and queueing.problem:
        return QueueHold(Reason.ADMISSION_UNUSABLE, queueing.problem)
    return None
