"""The plan for a job: an ordered story of guards, each of which settles the matter or passes it on.

Level-triggered: only what is stored in the job and seen of its pods counts, never how it came to be. Planning twice from
the same snapshot gives the same plan, and planning after the plan was carried out gives none.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from trainyard.api.constants import CONTROLLER_NAME
from trainyard.api.reasons import Reason
from trainyard.api.spec import CleanPods, Success
from trainyard.api.status import ConditionType as C, StatusChanges, TrainingJobStatus
from trainyard.domain.actions import (
    Action,
    CreateService,
    CreateWorker,
    DeleteJob,
    DeletePod,
    Event,
    Plan,
    whole_seconds,
)
from trainyard.domain.progress import goodput, stragglers
from trainyard.domain.progress.group_progress import last_step_of, progress
from trainyard.domain.recovery import agent_reports, failure_policy, stored_times, suspect_nodes
from trainyard.domain.recovery.agent_injection import not_for
from trainyard.domain.recovery.restart_scope import opening, told_by_all
from trainyard.domain.recovery.root_cause import find_cause, settling
from trainyard.domain.scaling import capacity, resize, scale_up
from trainyard.domain.state.rank_layout import indivisible, uses_torchrun_rendezvous
from trainyard.domain.state.snapshot import JobView, PodView, Snapshot
from trainyard.domain.state.worker_state import State, all_present, has_stopped, state
from trainyard.domain.status import transitions
from trainyard.domain.status.report import report, unfollowed
from trainyard.domain.stop import coordinated_stop, deadlines
from trainyard.domain.stop.pod_removal import removals
from trainyard.domain.wording import counted

BEYOND_ALL_ATTEMPTS = 1_000_000_000
"""No job ever has so many. A pod whose name says so was not made by us, and what it says is not believed; nor are agents that do."""
SPARED = timedelta(seconds=60)
"""How long the worker that a job has failed of may take to end by itself. One whose container its node starts again never does."""
LOST = timedelta(seconds=30)
"""A pod that is still there so long after its grace period is on a node that nobody hears of. It is not waited for."""


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """What to do for a job now."""
    job, status = snapshot.job, snapshot.job.status
    # In whole seconds, as times are stored: what is decided now equals what is read later.
    now = now.replace(microsecond=0)
    if not ours(job):
        return Plan(status)
    if job.deleting:
        removed, waits = removals(snapshot, snapshot.pods, now)
        return Plan(status, tuple(removed), requeue_after=_soonest(waits))
    if status.finished:
        return _after_the_end(snapshot, now)
    snapshot = _prepare(snapshot, now)
    job, status = snapshot.job, snapshot.job.status
    told = [*(pod.attempt for pod in snapshot.pods), told_by_all(snapshot)]
    newest = max((attempt for attempt in told if attempt < BEYOND_ALL_ATTEMPTS), default=0)
    if newest > status.attempt:
        return transitions.adopt(snapshot, newest)
    if not status.holds(C.SUSPENDED) and _succeeded(snapshot):
        return transitions.complete(job, snapshot.size.current, now)
    if held := _held(snapshot, now) or _paused(snapshot, now):
        return held
    snapshot = agent_reports.overlaid(snapshot, now)
    if status.internal.active_since is None:
        # The first look at a job needs no verdict of its own: its pods bear attempt 1, as does a status never written.
        snapshot = _with_status(snapshot, transitions.start(job, now))
    return _judge(snapshot, now) or _act(snapshot, now)


def ours(job: JobView) -> bool:
    """Whether this operator looks after the job at all."""
    return job.spec.managed_by in {None, CONTROLLER_NAME}


def _prepare(snapshot: Snapshot, now: datetime) -> Snapshot:
    """Return the snapshot with what all later steps rely on: plausible times, the reported progress and the group's size."""
    status = stored_times.believed(snapshot.job.status, now)
    snapshot = _with_status(snapshot, status)
    if snapshot.reports:
        seen, active = progress(snapshot, now), transitions.active(status, goodput.step_reported_at(snapshot, now))
        reported: StatusChanges = {
            "progress": seen,
            "goodput": goodput.reported(snapshot, seen, active),
            "stragglers": stragglers.stragglers(snapshot, now),
        }
        snapshot = _with_status(snapshot, status.evolve(**reported))
    return replace(snapshot, decided_size=scale_up.decide_size(snapshot, now))


def _with_status(snapshot: Snapshot, status: TrainingJobStatus) -> Snapshot:
    return replace(snapshot, job=replace(snapshot.job, status=status))


def _judge(snapshot: Snapshot, now: datetime) -> Plan | None:
    """The verdict that is due on a job that has not succeeded, if any. The order decides between several."""
    job, status, pods = snapshot.job, snapshot.job.status, snapshot.current
    if deadlines.overdue(job, now):
        limit = job.spec.lifecycle.active_deadline_seconds
        message = f"the job was active for longer than lifecycle.activeDeadlineSeconds, which is {limit}"
        return transitions.fail(job, Reason.DEADLINE_EXCEEDED, message, now)
    if was := snapshot.size.resized_from:
        return resize.resize(snapshot, was, now)
    if status.awaiting_rendezvous and snapshot.coordinator_up_since is None:
        return transitions.regroup(snapshot, now)
    if cause := find_cause(pods, _created(snapshot)):
        # Who lost a peer may have lost one that nothing is heard of, or that has done its work: that is known in a moment.
        if wait := settling(cause, now) or agent_reports.calling(snapshot, now) or agent_reports.missing(snapshot, now):
            return Plan(status, requeue_after=whole_seconds(wait))
        if snapshot.agent and (why := not_for(job, cause)):
            return transitions.without_agent(snapshot, why, now)
        cause = replace(cause, told=last_step_of(snapshot, cause.index))
        return failure_policy.settle(cause, snapshot, now)
    if free := suspect_nodes.released(job, pods, now):
        return transitions.release(snapshot, free, now)
    if size := capacity.feasible_size(snapshot, now):
        return resize.shrink(snapshot, size, capacity.unschedulable_message(snapshot), now)
    return deadlines.late(snapshot, now)


def _created(snapshot: Snapshot) -> list[int]:
    """The workers whose pods have been there: where one is missing, it was taken away."""
    status = snapshot.job.status
    launched = status.internal.launched_attempt == status.attempt
    return [i for i in range(snapshot.size.desired) if launched or status.created_in_attempt(i) < status.attempt]


def _act(snapshot: Snapshot, now: datetime) -> Plan:
    """Bring the pods to what the status says: the old attempts gone, then all workers of the current one there."""
    job, status = snapshot.job, snapshot.job.status
    if changes := scale_up.joining_update(snapshot, now):
        return Plan(status.evolve(**changes), events=scale_up.scale_up_events(snapshot, changes))
    # A worker without others is looked for by nobody: a thousand jobs of one GPU need no thousand Services.
    workers = snapshot.size.desired
    fits = not indivisible(job.spec, workers)
    named = fits and (workers > 1 or uses_torchrun_rendezvous(job.spec))
    actions: list[Action] = [CreateService()] if named and not snapshot.has_service else []
    not_before = status.internal.backoff.not_before
    waiting = not_before is not None and now < not_before
    # While the next attempt has to wait, those that have ended keep their logs.
    actions += _delete([p for p in snapshot.old if not (waiting and p.ended)], Reason.STALE_ATTEMPT)
    removed, again = removals(snapshot, [*snapshot.old, *(p for p in snapshot.joining if p.deletion_time)], now)
    actions += removed
    events = [*stragglers.straggler_events(snapshot), *unfollowed(snapshot)]
    waits = [
        *deadlines.waits(snapshot, now),
        *stragglers.deadlines(status, now),
        *capacity.deadlines(snapshot, now),
        *again,
    ]
    present = {p.index for p in snapshot.current}
    if waiting and not_before:
        waits.append((not_before - now).total_seconds())
    waits += agent_reports.deadlines(snapshot, now)
    in_the_way = [p for p in snapshot.old if not (_lost(p, now) or agent_reports.out_of_the_way(snapshot, p, now))]
    waits += [(LOST - (now - p.deletion_time)).total_seconds() for p in in_the_way if p.deletion_time]
    if (status.internal.group is None and (waiting or in_the_way)) or (waiting and not status.awaiting_rendezvous):
        return report(snapshot, Plan(status, actions, events, _soonest(waits)), now)
    if fits and status.internal.launched_attempt < status.attempt:
        missing = [i for i in range(workers) if i not in present]
        actions += [CreateWorker(i, status.created_in_attempt(i), workers) for i in missing]
        if not missing and (made := [i for i in present if status.created_in_attempt(i) == status.attempt]):
            note = f"created {counted(len(made), 'worker')} of attempt {status.attempt}"
            events.append(Event("Normal", Reason.WORKERS_CREATED, note))
    if status.awaiting_rendezvous and not waiting and all(has_stopped(p) for p in in_the_way):
        address = opening(snapshot) if all(agent_reports.ready(snapshot, p) for p in snapshot.current) else None
        if address and all_present(snapshot.current, workers):
            # Told together with what follows from it: one write less for all to wait for.
            status = transitions.open_rendezvous(status, address)
    actions += scale_up.create_joining_workers(snapshot)
    return report(snapshot, Plan(status, actions, events, _soonest(waits)), now)


def _held(snapshot: Snapshot, now: datetime) -> Plan | None:
    """What a common end of the ranks asks for, while the job may go on at all."""
    held = None if deadlines.overdue(snapshot.job, now) else coordinated_stop.hold(snapshot, now)
    if held is None or held.requeue_after is None:
        return held
    waits = [each for each in deadlines.waits(snapshot, now) if each > 0]
    return replace(held, requeue_after=_soonest([held.requeue_after, *waits]))


def _paused(snapshot: Snapshot, now: datetime) -> Plan | None:
    """What a suspension, or its end, asks for."""
    if not snapshot.job.spec.lifecycle.suspend:
        return transitions.resume(snapshot.job, now) if snapshot.job.status.holds(C.SUSPENDED) else None
    if not snapshot.job.status.holds(C.SUSPENDED):
        return transitions.suspend(snapshot, now)
    removed, waits = removals(snapshot, snapshot.pods, now)
    actions = [*_delete(snapshot.pods, Reason.SUSPENDED), *removed]
    return report(snapshot, Plan(snapshot.job.status, actions, requeue_after=_soonest(waits)), now)


def _after_the_end(snapshot: Snapshot, now: datetime) -> Plan:
    """A finished job only ever loses things: pods by `cleanPods`, itself by `ttlSecondsAfterFinished`."""
    lifecycle, status = snapshot.job.spec.lifecycle, snapshot.job.status
    ttl, ended = lifecycle.ttl_seconds_after_finished, status.completion_time
    removed, waits = removals(snapshot, snapshot.pods, now)
    if ttl is not None and ended is not None:
        wait = ttl - (now - ended).total_seconds()
        if wait <= 0:
            return Plan(status, [DeleteJob(Reason.TTL_EXPIRED)])
        waits.append(wait)
    # The agent of the worker that the job has failed of ends by itself when it hears of that: its log is what people look for.
    last, left = status.last_failure, (ended or now) + SPARED - now
    spared = last.pod_uid if last and last.attempt == status.attempt and left > timedelta() else ""
    waits += [left.total_seconds() for p in snapshot.pods if p.uid == spared and not has_stopped(p)]
    doomed = _delete([p for p in snapshot.pods if _goes(p, lifecycle.clean_pods, spared)], Reason.JOB_FINISHED)
    return report(snapshot, Plan(status, [*doomed, *removed], requeue_after=_soonest(waits)), now)


def _goes(pod: PodView, policy: CleanPods, spared: str) -> bool:
    match policy:
        case CleanPods.ALL:
            return True
        case CleanPods.RUNNING:
            return not pod.ended and not (pod.uid == spared and pod.exit is None)
        case CleanPods.NONE:
            return False
        case _:
            assert_never(policy)


def _succeeded(snapshot: Snapshot) -> bool:
    """Whether the group has done its work: the group as it was made, which `replicas` may have left behind."""
    succeeded = [p for p in snapshot.current if state(p) is State.SUCCEEDED]
    wished = 1 if snapshot.job.spec.lifecycle.success is Success.WORKER_0 else snapshot.size.current
    return all_present(succeeded, wished)


def _delete(pods: Sequence[PodView], reason: Reason) -> list[Action]:
    return [DeletePod(p.name, p.uid, reason) for p in pods if p.deletion_time is None]


def _lost(pod: PodView, now: datetime) -> bool:
    return pod.deletion_time is not None and now - pod.deletion_time >= LOST


def _soonest(waits: Sequence[float]) -> float | None:
    return max(0.0, min(waits)) if waits else None
