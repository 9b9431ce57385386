"""Decide what a job with a queue does: wait without pods, start as admitted, or stop because the queue wants its quota back. Pure.

The order is that of Kueue's own jobs: the pods stop first, then the quota is given back.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from trainyard.api.reasons import Reason
from trainyard.domain.decisions import Admit, Hold, Outcome, PodChanges, Resume, WorkloadAction
from trainyard.domain.queueing import workload_upkeep
from trainyard.domain.queueing.workload_upkeep import reduced_admission
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.stop import pod_removal

LOOK_AGAIN_SECONDS = 15.0
"""Seconds until Kueue, or a flavor, is looked for again: no event reports them."""
UNREAD_ADMISSION_SECONDS = 1.0
"""Seconds until an admission is looked at again whose flavors could not be read."""


def in_queue(snapshot: Snapshot, now: datetime) -> Hold | Admit | PodChanges | Outcome | None:
    """Return what the queue demands of an active job; None where the job may run."""
    status = snapshot.job.status
    if snapshot.job.queue is None:
        released = status.queued or status.internal.admission is not None
        return Admit(None, "the job has no queue of Kueue any more") if released else None
    hold = snapshot.hold
    if hold is None:
        return _admitted(snapshot, now)
    if not status.queued:
        return Hold(hold.reason, hold.message)
    resting = _resting(snapshot, now, workload_upkeep.while_waiting(snapshot, pods_ended=_pods_ended(snapshot, now)))
    unseen = hold.reason in {Reason.QUEUE_UNAVAILABLE, Reason.ADMISSION_UNUSABLE}
    return replace(resting, waits=[*resting.waits, LOOK_AGAIN_SECONDS]) if unseen and snapshot.queueing else resting


def while_suspended(snapshot: Snapshot, now: datetime) -> PodChanges | Resume:
    """Return what a job does that the user has suspended: give its quota back, and take its place again when it is resumed."""
    suspend, ended = snapshot.job.spec.lifecycle.suspend, _pods_ended(snapshot, now)
    actions = workload_upkeep.while_suspended(snapshot, suspend=suspend, pods_ended=ended)
    return Resume() if actions is None else _resting(snapshot, now, actions)


def at_the_end(snapshot: Snapshot, now: datetime) -> Sequence[WorkloadAction]:
    """Return what becomes of the Workload of a job that has finished or is being deleted."""
    return workload_upkeep.at_the_end(snapshot, pods_ended=_pods_ended(snapshot, now))


def _admitted(snapshot: Snapshot, now: datetime) -> Hold | Admit | PodChanges | Outcome | None:
    """Return what follows from an admission: it is stored before pods are created from it."""
    status, queueing = snapshot.job.status, snapshot.queueing
    stored, workload = status.internal.admission, queueing.workload if queueing else None
    if not status.queued and stored is not None and (workload is None or stored.uid == workload.uid):
        smaller = reduced_admission(snapshot, stored)
        return None if smaller is None else Outcome({"admission": smaller})
    if queueing is not None and (offer := queueing.offer) is not None:
        where = f" in {offer.cluster_queue}" if offer.cluster_queue else ""
        return Admit(offer, f"the queue has admitted the job with quota{where}")
    if not status.queued:
        return Hold(Reason.WAITING_FOR_QUOTA, "the admission has not been read yet")
    resting = _resting(snapshot, now, ())
    return replace(resting, waits=[*resting.waits, UNREAD_ADMISSION_SECONDS])


def _resting(snapshot: Snapshot, now: datetime, more: Sequence[WorkloadAction]) -> PodChanges:
    """Return how the pods of the job end, with what its Workload needs."""
    resting = pod_removal.pods_at_rest(snapshot, now)
    return replace(resting, actions=[*resting.actions, *more])


def _pods_ended(snapshot: Snapshot, now: datetime) -> bool:
    """Return whether no pod of the job uses its quota any more. The node of a lost pod is not there to be used."""
    return all(pod.ended or pod.gone or pod_removal.is_lost(pod, now) for pod in snapshot.pods)
