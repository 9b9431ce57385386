"""Bring the pods of a job to what its status says: old attempts deleted, all workers of the current attempt created. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trainyard.api.internal_status import Rendezvous
from trainyard.api.reasons import Reason
from trainyard.api.status import StatusChanges, TrainingJobStatus
from trainyard.domain.actions import Action, CreateService, CreateWorker, DeletePod, Event, Outcome, soonest
from trainyard.domain.progress import stragglers
from trainyard.domain.recovery import agent_reports
from trainyard.domain.recovery.restart_scope import rendezvous_address
from trainyard.domain.scaling import capacity, scale_up
from trainyard.domain.state.rank_layout import indivisible, uses_torchrun_rendezvous
from trainyard.domain.state.snapshot import PodView, Snapshot
from trainyard.domain.state.worker_state import all_present, has_stopped
from trainyard.domain.status.report import report, unfollowed
from trainyard.domain.stop import deadlines, pod_removal
from trainyard.domain.wording import counted

LOST_NODE_TIMEOUT = timedelta(seconds=30)
"""A pod that still exists this long after its grace period is on a lost node. The next attempt does not wait for it."""


def reconcile_pods(snapshot: Snapshot, now: datetime) -> Outcome:
    """Return the outcome for an attempt that continues: create and delete pods, open the rendezvous, report what is observed.

    1. Store the joining workers, before their pods are created. 2. Create the Service. 3. Delete the pods of earlier attempts.
    4. Wait for the backoff and for ranks of earlier attempts. 5. Create the workers that are missing. 6. Open the rendezvous
    once all workers are ready. 7. Create the workers that join later.
    """
    status = snapshot.job.status
    if changes := scale_up.joining_update(snapshot, now):
        return Outcome(changes, events=scale_up.scale_up_events(snapshot, changes))
    opened: StatusChanges = {}
    backoff, blocking = _backoff_left(status, now), _blocking(snapshot, now)
    terminating = [*snapshot.old, *(p for p in snapshot.joining if p.deletion_time)]
    removed, removal_waits = pod_removal.removals(snapshot, terminating, now)
    actions = [*_create_service(snapshot), *_delete_old_pods(snapshot, backing_off=bool(backoff)), *removed]
    events = [*stragglers.straggler_events(snapshot), *unfollowed(snapshot)]
    waits = [*_waits(snapshot, blocking, now), *removal_waits, *([backoff.total_seconds()] if backoff else [])]
    if not _has_to_wait(status, blocking, backing_off=bool(backoff)):
        created = _create_workers(snapshot)
        actions += created
        events += [] if created else _created_event(snapshot)
        if not backoff and all(map(has_stopped, blocking)):
            opened = _open_rendezvous(snapshot)
        actions += scale_up.create_joining_workers(snapshot)
    return report(snapshot, Outcome(opened, (), actions, events, soonest(waits)), now)


def delete_pods(pods: Sequence[PodView], reason: Reason) -> list[Action]:
    """Return the deletions of those pods that are not being deleted yet."""
    return [DeletePod(p.name, p.uid, reason) for p in pods if p.deletion_time is None]


def _backoff_left(status: TrainingJobStatus, now: datetime) -> timedelta | None:
    """Return how much longer the next attempt has to wait; None: it may start."""
    start = status.internal.backoff.not_before
    return start - now if start is not None and now < start else None


def _blocking(snapshot: Snapshot, now: datetime) -> list[PodView]:
    """Return the pods of earlier attempts that the new attempt waits for: their ranks may still run."""
    return [p for p in snapshot.old if not (_is_lost(p, now) or agent_reports.is_out_of_use(snapshot, p, now))]


def _is_lost(pod: PodView, now: datetime) -> bool:
    return pod.deletion_time is not None and now - pod.deletion_time >= LOST_NODE_TIMEOUT


def _create_service(snapshot: Snapshot) -> list[Action]:
    """Return the creation of the Service, where workers need it: no peer looks for the only worker of a group."""
    spec, workers = snapshot.job.spec, snapshot.size.desired
    needed = not indivisible(spec, workers) and (workers > 1 or uses_torchrun_rendezvous(spec))
    return [CreateService()] if needed and not snapshot.has_service else []


def _delete_old_pods(snapshot: Snapshot, *, backing_off: bool) -> list[Action]:
    """Return the deletions of earlier attempts' pods. Those that have ended keep their logs until the backoff is over."""
    return delete_pods([p for p in snapshot.old if not (backing_off and p.ended)], Reason.STALE_ATTEMPT)


def _waits(snapshot: Snapshot, blocking: Sequence[PodView], now: datetime) -> list[float]:
    """Return the seconds until each next time at which the plan may change by itself."""
    return [
        *deadlines.waits(snapshot, now),
        *stragglers.deadlines(snapshot.job.status, now),
        *capacity.deadlines(snapshot, now),
        *agent_reports.waits(snapshot, now),
        *((LOST_NODE_TIMEOUT - (now - p.deletion_time)).total_seconds() for p in blocking if p.deletion_time),
    ]


def _has_to_wait(status: TrainingJobStatus, blocking: Sequence[PodView], *, backing_off: bool) -> bool:
    """Return whether no worker may be created yet. A group that keeps pods creates the others early: they wait for the rendezvous."""
    if status.internal.group is None:
        return backing_off or bool(blocking)
    return backing_off and not status.awaiting_rendezvous


def _to_create(snapshot: Snapshot) -> bool:
    """Return whether the pods of the current attempt have yet to be created."""
    status = snapshot.job.status
    return (
        not indivisible(snapshot.job.spec, snapshot.size.desired) and status.internal.launched_attempt < status.attempt
    )


def _create_workers(snapshot: Snapshot) -> list[Action]:
    """Return the creations of the workers that are missing."""
    status, replicas = snapshot.job.status, snapshot.size.desired
    present = {p.index for p in snapshot.current}
    missing = [i for i in range(replicas) if i not in present and _to_create(snapshot)]
    return [CreateWorker(i, status.created_in_attempt(i), replicas) for i in missing]


def _created_event(snapshot: Snapshot) -> list[Event]:
    """Return the event that all pods of the attempt exist; none where they were not created for it."""
    status = snapshot.job.status
    made = {p.index for p in snapshot.current if status.created_in_attempt(p.index) == status.attempt}
    if not made or not _to_create(snapshot):
        return []
    note = f"created {counted(len(made), 'worker')} of attempt {status.attempt}"
    return [Event("Normal", Reason.WORKERS_CREATED, note)]


def _open_rendezvous(snapshot: Snapshot) -> StatusChanges:
    """Return the change that opens the rendezvous once all workers are ready; else nothing.

    It is stored together with what follows from it: one write less for all workers to wait for.
    """
    status = snapshot.job.status
    if not status.awaiting_rendezvous or not all_present(snapshot.current, snapshot.size.desired):
        return {}
    if not all(agent_reports.is_ready(snapshot, p) for p in snapshot.current):
        return {}
    address = rendezvous_address(snapshot)
    return {"rendezvous": Rendezvous(attempt=status.attempt, address=address)} if address else {}
