"""Bring the pods of a job to what its status says: old attempts deleted, all workers of the current attempt created. Pure."""

from collections.abc import Sequence
from datetime import datetime

from trainyard.api.internal_status import Rendezvous
from trainyard.api.reasons import Reason
from trainyard.api.status import StatusChanges, TrainingJobStatus
from trainyard.domain.decisions import (
    Action,
    CreatePodGroup,
    CreateService,
    CreateWorker,
    DeletePodGroups,
    Event,
    Outcome,
    PodChanges,
)
from trainyard.domain.scaling.resize import scale_up
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodView
from trainyard.domain.stop import pod_removal
from trainyard.domain.wording import counted


def reconcile_pods(snapshot: Snapshot, deadlines: Sequence[float], now: datetime) -> Outcome | PodChanges:
    """Return what an attempt that continues needs: create and delete pods, open the rendezvous.

    `deadlines`: the seconds until each deadline of the job and of its agents.

    1. Store the joining workers, before their pods are created. 2. Create the Service. 3. Delete the pods and the PodGroup of
    earlier attempts. 4. Wait for the backoff and for ranks of earlier attempts. 5. Store the PodGroup of a new group, before it
    is created. 6. Create it, and the workers that are missing. 7. Open the rendezvous once all workers are ready. 8. Create the
    workers that join later.
    """
    status, joining = snapshot.job.status, scale_up(snapshot, now)
    if joining.changes:
        return Outcome(joining.changes, events=joining.events)
    removed = pod_removal.removals(snapshot, now)
    start = status.internal.backoff.not_before
    backoff = [(start - now).total_seconds()] if start is not None and now < start else []
    # Pods that have ended keep their logs until the backoff is over.
    stale = pod_removal.delete_pods([p for p in snapshot.old if not (backoff and p.ended)], Reason.STALE_ATTEMPT)
    blocking = [pod for pod in snapshot.old if not (pod.idle or pod_removal.is_lost(pod, now))]
    actions, events = [*_create_service(snapshot), *stale, *removed.actions], list[Event]()
    waits = [*deadlines, *joining.waits, *_lost_node_waits(blocking, now), *removed.waits, *backoff]
    opened: Rendezvous | None = None
    changes: StatusChanges = {}
    if unused := snapshot.unused_pod_group or (status.pod_group if snapshot.gang.outdated else None):
        actions, changes = [*actions, DeletePodGroups(unused.scheduler)], {"pod_group": None}
    elif not _has_to_wait(status, blocking, backing_off=bool(backoff)):
        if snapshot.gang.pod_group:
            return Outcome({"pod_group": snapshot.gang.pod_group})
        created = _create_workers(snapshot)
        events = [] if created else _created_event(snapshot)
        if not backoff and all(pod.has_stopped for pod in blocking):
            opened = _open_rendezvous(snapshot)
        actions += _with_pod_group(status, [*created, *joining.actions])
    return PodChanges(actions, waits, events, opened, changes, joining.message)


def _create_service(snapshot: Snapshot) -> list[Action]:
    """Return the creation of the Service, where workers need it: no peer looks for the only worker of a group."""
    job, members = snapshot.job, snapshot.job.members(snapshot.size.desired)
    needed = not _held(snapshot) and (len(members) > 1 or job.uses_torchrun_rendezvous)
    return [CreateService()] if needed and not snapshot.has_service else []


def _lost_node_waits(blocking: Sequence[PodView], now: datetime) -> list[float]:
    """Return the seconds until each of these pods counts as lost."""
    return [
        (pod_removal.LOST_NODE_TIMEOUT - (now - p.deletion_time)).total_seconds() for p in blocking if p.deletion_time
    ]


def _has_to_wait(status: TrainingJobStatus, blocking: Sequence[PodView], *, backing_off: bool) -> bool:
    """Return whether no worker may be created yet. A group that keeps pods creates the others early: they wait for the rendezvous."""
    if status.internal.group is None:
        return backing_off or bool(blocking)
    return backing_off and not status.awaiting_rendezvous


def _to_create(snapshot: Snapshot) -> bool:
    """Return whether the pods of the current attempt have yet to be created."""
    status = snapshot.job.status
    return not _held(snapshot) and status.internal.launched_attempt < status.attempt


def _held(snapshot: Snapshot) -> bool:
    """Return whether no pod of the attempt may be created, whatever else holds."""
    return bool(snapshot.size.indivisible_because or snapshot.gang.unavailable_because)


def _create_workers(snapshot: Snapshot) -> list[Action]:
    """Return the creations of the workers that are missing."""
    status, replicas = snapshot.job.status, snapshot.size.desired
    missing = snapshot.missing if _to_create(snapshot) else [i for i in snapshot.missing if status.recreated(i)]
    return [CreateWorker(i, status.created_in_attempt(i), replicas, status.recreated(i)) for i in missing]


def _with_pod_group(status: TrainingJobStatus, actions: Sequence[Action]) -> Sequence[Action]:
    """Return the actions with the creation of the PodGroup before that of pods, if they have one."""
    creates = any(isinstance(action, CreateWorker) for action in actions)
    return [CreatePodGroup(), *actions] if creates and status.pod_group else actions


def _created_event(snapshot: Snapshot) -> list[Event]:
    """Return the event that all pods of the attempt exist, and what may keep them apart; none where they were not created for it."""
    status = snapshot.job.status
    made = [p for p in snapshot.current if p.attempt == status.attempt]
    if not made or not _to_create(snapshot):
        return []
    what = "member" if snapshot.job.role_members else "worker"
    note = f"created {counted(len(made), what)} of attempt {status.attempt}"
    problem = snapshot.dns_problem
    warnings = [Event("Warning", Reason.CLUSTER_DNS_UNUSED, problem)] if problem else []
    return [Event("Normal", Reason.WORKERS_CREATED, note), *warnings]


def _open_rendezvous(snapshot: Snapshot) -> Rendezvous | None:
    """Return the rendezvous, open once all workers are ready and worker 0 has an address; else None.

    It is stored together with what follows from it: one write less for all workers to wait for.
    """
    status = snapshot.job.status
    ready = all(pod.index in snapshot.ready_workers for pod in snapshot.current)
    if not status.awaiting_rendezvous or snapshot.missing or not ready:
        return None
    address = _rendezvous_address(snapshot)
    return Rendezvous(attempt=status.attempt, address=address) if address else None


def _rendezvous_address(snapshot: Snapshot) -> str | None:
    """Return the address of worker 0, where the others find it; None until it has one."""
    if len(snapshot.job.members(snapshot.size.desired)) == 1:
        return "localhost"
    first: PodView | None = next((pod for pod in snapshot.current if pod.index == 0), None)
    return first.ip or None if first else None
