"""Decide whose queue `scheduling.queue` names: a LocalQueue of Kueue, or a queue of Volcano. Pure.

Kueue's label on the TrainingJob always names Kueue's. Pods that exist keep their queue, whatever is installed meanwhile.
"""

from dataclasses import replace

from trainyard.api.scheduling import Gang, GangScheduler
from trainyard.domain.state.gang_schedulers import VOLCANO_SCHEDULER, GangSchedulers, own_group
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.workload import QueueRequest


def with_queue(job: JobView, schedulers: GangSchedulers, *, kueue: bool) -> JobView:
    """Return the job with its queue as it counts in this cluster: `queue` is Kueue's alone, and `volcano_queue` Volcano's.

    `schedulers`: the gang schedulers that the operator may use; `kueue`: whether it was installed with Kueue.
    """
    request, named = job.queue, job.spec.scheduling.queue
    if request is None or named is None or not _is_of_volcano(job, request, schedulers, kueue=kueue):
        return job
    of_kueue = replace(request, queue=request.label) if request.label else None
    return replace(job, queue=of_kueue, volcano_queue=named)


def _is_of_volcano(job: JobView, request: QueueRequest, schedulers: GangSchedulers, *, kueue: bool) -> bool:
    """Return whether the queue in the spec of a job is one of Volcano."""
    status, gang = job.status, job.spec.scheduling.gang
    if status.pod_group is not None:
        return status.pod_group.queue is not None
    if status.internal.admission is not None and not request.label:
        return False
    if gang is not Gang.AUTO:
        return gang is Gang.VOLCANO
    return _is_volcanos_choice(job, schedulers, kueue=kueue)


def _is_volcanos_choice(job: JobView, schedulers: GangSchedulers, *, kueue: bool) -> bool:
    """Return whether a job that leaves the choice of its gang gets one of Volcano for its queue.

    Where Kueue has queues, too, only the template can say that Volcano's is meant.
    """
    volcano, template = GangScheduler.VOLCANO, job.spec.template
    if volcano not in schedulers.available or own_group(template) or not schedulers.serves(volcano, template):
        return False
    return not kueue or template["spec"].get("schedulerName") == VOLCANO_SCHEDULER
