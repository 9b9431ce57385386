"""Report the observed pods in the status: counts, conditions, the workers that are not healthy. Pure."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase, StatusChanges, TrainingJobStatus, WorkerStatus
from trainyard.domain.actions import Event, Plan
from trainyard.domain.conditions import (
    ConditionUpdate,
    apply_conditions,
    clear_conditions,
    condition_false,
    condition_true,
)
from trainyard.domain.progress import stragglers
from trainyard.domain.recovery.agent_injection import agent_conditions
from trainyard.domain.recovery.agent_reports import is_ready
from trainyard.domain.recovery.suspect_nodes import required
from trainyard.domain.scaling import scale_up
from trainyard.domain.state.object_names import selector
from trainyard.domain.state.rank_layout import indivisible
from trainyard.domain.state.snapshot import JobView, PodView, Snapshot
from trainyard.domain.state.worker_state import State, all_present, has_stopped, health, state
from trainyard.domain.wording import counted

LISTED = 16
HELD_UP = frozenset({Reason.UNSCHEDULABLE, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_CREATE_FAILED})


def report(snapshot: Snapshot, plan: Plan, now: datetime) -> Plan:
    """Return the plan with the observed pods in its status."""
    job, pods = snapshot.job, snapshot.current
    well = sum(p.ready or state(p) is State.SUCCEEDED for p in pods)
    update: StatusChanges = {
        "observed_generation": job.generation,
        "replicas": len(snapshot.pods),
        "ready_replicas": well,
        "selector": selector(job.uid),
    }
    if not plan.status.finished:
        update["ready"] = f"{well}/{snapshot.size.allowed}"
    if plan.status.finished or plan.status.holds(C.SUSPENDED):
        update |= _at_rest(job, plan.status, now)
    else:
        update |= _active(snapshot, plan.status, now)
    status = plan.status.evolve(**update)
    return replace(plan, status=status, events=[*plan.events, *_held_up(snapshot.job.status, status)])


def _held_up(before: TrainingJobStatus, after: TrainingJobStatus) -> list[Event]:
    """Return the event that reports what the pods wait for, once: an image, a node, a volume."""
    was, seen = before.condition(C.RUNNING), after.condition(C.RUNNING)
    if seen is None or seen.status == "True" or seen.reason not in HELD_UP or (was and was.reason == seen.reason):
        return []
    return [Event("Warning", Reason(seen.reason), seen.message)]


def unfollowed(snapshot: Snapshot) -> list[Event]:
    """Return the event that `replicas` is not followed: once, together with the condition."""
    events = []
    for kind, reason, why in (
        (C.STALLED, Reason.INVALID_SPEC, snapshot.size.invalid_because),
        (C.SCALING_LIMITED, Reason.SIZE_NOT_ALLOWED, snapshot.size.limited_because),
    ):
        before = snapshot.job.status.condition(kind)
        if why and not (before is not None and before.status == "True" and before.message == why):
            events.append(Event("Warning", reason, why))
    return events


def is_news(job: JobView, after: TrainingJobStatus) -> bool:
    """Return whether the status must be stored at once: the job has changed its state, or a new spec was observed.

    So must the creation of all pods of a group: before that is stored, a lost pod would be created again and not end the
    attempt, which for a single worker is the same. Counts and waiting reasons can be stored later.
    """
    before, grouped = job.status, after.replicas > 1
    looked_at = before.observed_generation and before.observed_generation != after.observed_generation
    return bool(looked_at) or _moves(before, grouped=grouped) != _moves(after, grouped=grouped)


def _moves(status: TrainingJobStatus, *, grouped: bool) -> tuple[Any, ...]:
    holds = {c.type for c in status.conditions if c.status == "True" and c.type != C.SCHEDULED}
    launched = grouped and status.internal.launched_attempt
    return (
        *(status.phase, status.attempt, launched, status.awaiting_rendezvous, status.internal.joining),
        *(status.internal.coordinated_stop, status.restarts, holds),
    )


def _at_rest(job: JobView, status: TrainingJobStatus, now: datetime) -> StatusChanges:
    """Return the changes of a finished or suspended job: only a failed job stays Stalled, and none is ScalingLimited."""
    ended = Reason.JOB_FINISHED if status.finished else Reason.SUSPENDED
    updates = clear_conditions(status, [C.SCALING_LIMITED], ended, "nothing is in the way")
    failed = status.condition(C.FAILED) if status.holds(C.FAILED) else None
    if failed is not None and status.holds(C.STALLED):
        updates.append(condition_true(C.STALLED, failed.reason, failed.message))
    else:
        updates += clear_conditions(status, [C.STALLED], ended, "nothing is in the way")
    return {"conditions": apply_conditions(status, updates, job.generation, now)} if updates else {}


def _active(snapshot: Snapshot, status: TrainingJobStatus, now: datetime) -> StatusChanges:
    job, pods, workers = snapshot.job, snapshot.current, snapshot.size.desired
    seen = health(pods, workers)
    if seen.running and status.awaiting_rendezvous:
        seen = replace(seen, running=False, reason=Reason.WORKERS_STARTING, message=_meeting(snapshot, now))
    if indivisible(job.spec, workers):
        seen = replace(seen, running=False, reason=Reason.INVALID_SPEC, message=snapshot.size.invalid_because)
    elif not pods and snapshot.old:
        seen = replace(seen, message=f"{len(snapshot.old)} pods of earlier attempts have yet to end")
    updates = [
        condition_true(C.SCHEDULED, Reason.WORKERS_SCHEDULED, "all workers have a node")
        if seen.scheduled
        else condition_false(C.SCHEDULED, _unplaced(seen.reason), f"{seen.message}{_avoiding(job, seen.reason)}")
    ]
    update: StatusChanges = {"workers": _unwell(pods)}
    if all_present(pods, workers):
        update["launched_attempt"] = status.attempt
    updates += _stalled(snapshot, status, seen.reason)
    updates += _sized(snapshot, status, now)
    updates += agent_conditions(job, status, brought=snapshot.agent)
    if straggling := stragglers.straggling_condition(snapshot):
        updates.append(straggling)
    restarting = status.condition(C.RESTARTING) if status.holds(C.RESTARTING) else None
    if seen.running:
        updates.append(condition_true(C.RUNNING, seen.reason, seen.message))
        if restarting:
            # The reason for the restart is useful while the attempt runs, too.
            why = f"attempt {status.attempt} began because {restarting.message}"
            updates.append(condition_false(C.RESTARTING, seen.reason, why))
        update |= {"phase": Phase.RUNNING, "running_time": status.running_time or now}
    elif restarting and not pods:
        # Until a pod of the new attempt exists, the reason for the restart is more useful than "0 of 3 workers".
        updates.append(condition_false(C.RUNNING, restarting.reason, restarting.message))
        update["phase"] = Phase.RESTARTING
    else:
        updates.append(condition_false(C.RUNNING, seen.reason, seen.message))
        update["phase"] = Phase.RESTARTING if restarting else Phase.PENDING
    return {**update, "conditions": apply_conditions(status, updates, job.generation, now)}


def _sized(snapshot: Snapshot, status: TrainingJobStatus, now: datetime) -> list[ConditionUpdate]:
    updates = clear_conditions(status, [C.SCALING_LIMITED], Reason.SIZE_ALLOWED, "replicas is a size that is allowed")
    if snapshot.size.limited_because:
        updates = [condition_true(C.SCALING_LIMITED, Reason.SIZE_NOT_ALLOWED, snapshot.size.limited_because)]
    if snapshot.size.scale_up_pending:
        return [*updates, condition_true(C.RESIZING, Reason.WORKERS_JOINING, scale_up.resizing_message(snapshot, now))]
    size = counted(snapshot.size.desired, "worker")
    return [*updates, *clear_conditions(status, [C.RESIZING], Reason.RESIZED, f"the group got {size}")]


def _stalled(snapshot: Snapshot, status: TrainingJobStatus, reason: Reason) -> list[ConditionUpdate]:
    if snapshot.size.invalid_because:
        return [condition_true(C.STALLED, Reason.INVALID_SPEC, snapshot.size.invalid_because)]
    return [condition_false(C.STALLED, reason, "the job goes on")] if status.holds(C.STALLED) else []


def _meeting(snapshot: Snapshot, now: datetime) -> str:
    """Return the message of a group that waits for its rendezvous: ready workers, backoff, pods that have yet to end."""
    count, desired = sum(is_ready(snapshot, pod) for pod in snapshot.current), snapshot.size.desired
    left = [pod.name for pod in snapshot.old if not has_stopped(pod)]
    until = f"; pod {left[0]} of an earlier attempt has yet to end" if left else ""
    begin = snapshot.job.status.internal.backoff.not_before
    at = (
        f", which does not begin before {begin:%H:%M:%S} UTC (internal.backoff.notBefore)"
        if begin and now < begin
        else ""
    )
    return f"{count} of {desired} workers are ready for attempt {snapshot.job.status.attempt}{at}{until}"


def _avoiding(job: JobView, reason: Reason) -> str:
    """Return the avoided nodes as a part of the message: the scheduler only reports that a node did not match."""
    nodes = (
        ", ".join(node.name for node in required(job.status.suspect_nodes)) if reason is Reason.UNSCHEDULABLE else ""
    )
    return f"; this job avoids {nodes} (status.suspectNodes says why)" if nodes else ""


def _unplaced(reason: Reason) -> Reason:
    return reason if reason is Reason.UNSCHEDULABLE else Reason.WORKERS_PENDING


def _unwell(pods: tuple[PodView, ...]) -> list[WorkerStatus]:
    return [worker for pod in pods if (worker := _unwell_worker(pod))][:LISTED]


def _unwell_worker(pod: PodView) -> WorkerStatus | None:
    seen = state(pod)
    why = pod.issue or pod.disruption
    if seen is State.FAILED and pod.exit:
        return WorkerStatus(
            name=pod.name, node=pod.node, state=seen, reason=pod.exit.reason, message=f"exit code {pod.exit.code}"
        )
    if why is None or seen in {State.RUNNING, State.SUCCEEDED}:
        return None
    return WorkerStatus(name=pod.name, node=pod.node, state=seen, reason=why.reason, message=why.message[:1024])
