"""Report the observed pods in the status: counts, conditions, the workers that are not healthy. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from trainyard.api.constants import ROLE_WORKER
from trainyard.api.reasons import Reason
from trainyard.api.roles import is_worker, role_and_number
from trainyard.api.status import ConditionType as C, Phase, StatusChanges, TrainingJobStatus
from trainyard.api.worker_status import RoleStatus, WorkerStatus
from trainyard.domain.decisions import Clear, ConditionUpdate, Event, Outcome, PodChanges, SetFalse, SetTrue, soonest
from trainyard.domain.progress import hang_detection, stragglers
from trainyard.domain.recovery.agent_injection import agent_conditions
from trainyard.domain.recovery.suspect_nodes import required
from trainyard.domain.state.group_health import Health
from trainyard.domain.state.object_names import selector
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.worker_views import PodView, State
from trainyard.domain.status.inactive import HAS_FAILED, HAS_FINISHED, IS_QUEUED, IS_SUSPENDED, RESTARTS, inactive
from trainyard.domain.wording import counted, same_obstacle, without_last_clause

LISTED = 16
NOT_STARTED = "no worker is started: see the condition Stalled"
HELD_UP = frozenset(
    {Reason.UNSCHEDULABLE, Reason.IMAGE_PULL_FAILED, Reason.CONTAINER_CREATE_FAILED}
    | {Reason.VOLUME_MOUNT_FAILED, Reason.INIT_CONTAINER_SLOW}
)


def report(snapshot: Snapshot, pods: PodChanges, now: datetime) -> Outcome:
    """Return the outcome of these changes of pods, with the observed pods in the status."""
    job, status, current = snapshot.job, snapshot.job.status, snapshot.current
    well = sum(map(_is_well, current))
    changes: StatusChanges = {
        "observed_generation": job.generation,
        "replicas": sum(not pod.gone and is_worker(pod.index) for pod in snapshot.pods),
        "ready_replicas": sum(map(_is_well, snapshot.current_workers)),
        "roles": _roles(snapshot),
        "selector": selector(job.uid, has_roles=bool(job.role_members)),
        **pods.changes,
    }
    if not status.finished:
        changes["ready"] = f"{well}/{len(job.members(snapshot.size.allowed))}"
    if status.finished or status.at_rest:
        return Outcome(changes, _at_rest(snapshot), pods.actions, pods.events, soonest(pods.waits))
    straggling, waits = stragglers.straggling(snapshot, now)
    injected = agent_conditions(job, brought=snapshot.agent)
    uncertain = _accelerators_uncertain(job)
    hangs = hang_detection.observe(snapshot, now)
    seen = _explained(snapshot.health, snapshot, opened=pods.rendezvous is not None, now=now)
    running = _running(status, seen, has_pods=bool(current))
    changes |= {"workers": _unwell(current), "phase": _phase(status, seen)}
    if pods.rendezvous:
        changes["rendezvous"] = pods.rendezvous
    starts = (seen.running and status.running_time is None) or pods.rendezvous is not None
    if starts and (order := snapshot.first_order):
        # Stored with what lets the agents start their ranks: none starts by another order.
        changes["worker_order"] = order
    if seen.running:
        changes |= {"running_time": status.running_time or now, "releases": None}
    changes |= hangs.changes
    if not snapshot.missing:
        changes["launched_attempt"] = status.attempt
    updates = [
        *_conditions(snapshot, seen),
        *_sized(snapshot, pods.resizing),
        *injected,
        *([straggling] if straggling else []),
        uncertain,
        *hangs.updates,
        *_restarted(status, seen),
        running,
    ]
    events = [
        *_straggling(status, straggling),
        *_unfollowed(snapshot),
        *_without_command(status, injected),
        *pods.events,
        *_held_up(status, running, seen),
        *_new_warnings(status, [uncertain, *hangs.updates]),
        *hangs.events,
    ]
    waits += [(p.slow_init_at - now).total_seconds() for p in current if p.slow_init_at and p.slow_init_at > now]
    return Outcome(changes, updates, pods.actions, events, soonest([*pods.waits, *waits, *hangs.waits]))


def _roles(snapshot: Snapshot) -> list[RoleStatus]:
    """Return how many members of each role exist and are ready; nothing where there are workers alone."""
    roles = [(ROLE_WORKER, snapshot.size.desired), *((role.name, role.replicas) for role in snapshot.job.spec.roles)]
    if len(roles) == 1:
        return []
    by_role: dict[str, list[PodView]] = {name: [] for name, _ in roles}
    for pod in snapshot.current:
        by_role[role_and_number(pod.index)[0]].append(pod)
    return [
        RoleStatus(
            name=name,
            replicas=number,
            ready_replicas=sum(map(_is_well, by_role[name])),
            restarts=sum(pod.container_restarts for pod in by_role[name] if snapshot.job.is_lone(pod.index)),
        )
        for name, number in roles
    ]


def _is_well(pod: PodView) -> bool:
    return pod.ready or pod.state is State.SUCCEEDED


def _accelerators_uncertain(job: JobView) -> ConditionUpdate:
    """Return the update of AcceleratorsUncertain: whether `processesPerReplica: auto` may be another number than the user needs."""
    kind, why = C.ACCELERATORS_UNCERTAIN, job.auto_processes.uncertain_because if job.auto_processes else ""
    if why:
        return SetTrue(kind, Reason.ACCELERATORS_UNKNOWN, why)
    return Clear(kind, Reason.ACCELERATORS_COUNTED, "the number of processes of each worker is known")


def _new_warnings(status: TrainingJobStatus, updates: Sequence[ConditionUpdate]) -> list[Event]:
    """Return an event for each condition that becomes True, or is True for another cause."""
    new = []
    for update in updates:
        before = status.condition(update.kind) if status.holds(update.kind) else None
        if isinstance(update, SetTrue) and (before is None or before.message != update.message):
            new.append(Event("Warning", Reason(update.reason), update.message))
    return new


def _straggling(status: TrainingJobStatus, condition: ConditionUpdate | None) -> list[Event]:
    """Return the event for a condition Straggling that has just become True."""
    if not isinstance(condition, SetTrue) or status.holds(C.STRAGGLING):
        return []
    return [Event("Warning", Reason.STRAGGLERS_DETECTED, condition.message)]


def _without_command(status: TrainingJobStatus, injected: Sequence[ConditionUpdate]) -> list[Event]:
    """Return the event that the agent cannot be injected for lack of a command, once."""
    before = status.condition(C.AGENT_INJECTED)
    known = before is not None and before.reason == Reason.NO_COMMAND
    if known or not any(isinstance(each, SetFalse) and each.reason is Reason.NO_COMMAND for each in injected):
        return []
    return [Event("Normal", Reason.NO_COMMAND, "no agent: set spec.template.spec.containers[0].command")]


def _held_up(status: TrainingJobStatus, running: ConditionUpdate, seen: Health) -> list[Event]:
    """Return the event that reports what the pods wait for, once for each obstacle: an image, a node, a volume."""
    was = status.condition(C.RUNNING)
    if not isinstance(running, SetFalse) or running.reason not in HELD_UP:
        return []
    if was and was.reason == running.reason and same_obstacle(seen.obstacle, was.message):
        return []
    return [Event("Warning", Reason(running.reason), running.message)]


def _unfollowed(snapshot: Snapshot) -> list[Event]:
    """Return the event that the spec is not followed: once, together with the condition."""
    events = []
    for kind, reason, why in (
        (C.STALLED, *_stalled_because(snapshot)),
        (C.SCALING_LIMITED, Reason.SIZE_NOT_ALLOWED, snapshot.size.limited_because),
    ):
        before = snapshot.job.status.condition(kind)
        if why and not (before is not None and before.status == "True" and before.message == why):
            events.append(Event("Warning", reason, why))
    return events


def is_news(job: JobView, after: TrainingJobStatus) -> bool:
    """Return whether the status must be stored at once: the job has changed its state, or a new spec was observed.

    So must the creation of all pods of a group. Before that is stored, a lost pod would be created again and not end
    the attempt. For a single worker that is the same. Counts and waiting reasons can be stored later.
    """
    before, grouped = job.status, after.replicas > 1
    looked_at = before.observed_generation and before.observed_generation != after.observed_generation
    return bool(looked_at) or _moves(before, grouped=grouped) != _moves(after, grouped=grouped)


def _moves(status: TrainingJobStatus, *, grouped: bool) -> tuple[Any, ...]:
    holds = {c.type for c in status.conditions if c.status == "True" and c.type != C.SCHEDULED}
    launched = grouped and status.internal.launched_attempt
    return (
        *(status.phase, status.attempt, launched, status.awaiting_rendezvous, status.internal.joining),
        status.internal.pod_group,
        *(status.internal.coordinated_stop, status.restarts, holds),
    )


def _at_rest(snapshot: Snapshot) -> list[ConditionUpdate]:
    """Return the updates of a finished, suspended or queued job: only a failed job stays Stalled, and none is ScalingLimited."""
    status = snapshot.job.status
    ended, why = Reason.JOB_FINISHED, HAS_FINISHED
    if not status.finished:
        ended, why = (Reason.SUSPENDED, IS_SUSPENDED) if status.suspended else (Reason.WAITING_FOR_QUOTA, IS_QUEUED)
    waiting = _queued(snapshot) if status.queued and not status.finished else []
    updates: list[ConditionUpdate] = [*waiting, Clear(C.SCALING_LIMITED, ended, inactive(C.SCALING_LIMITED, why))]
    failed = status.condition(C.FAILED) if status.holds(C.FAILED) else None
    if failed is not None and status.holds(C.STALLED):
        return [*updates, SetTrue(C.STALLED, failed.reason, HAS_FAILED)]
    return [*updates, Clear(C.STALLED, ended, inactive(C.STALLED, why))]


def _queued(snapshot: Snapshot) -> list[ConditionUpdate]:
    """Return why the job waits in its queue."""
    hold = snapshot.hold
    if hold is None:
        return []
    running = SetFalse(C.RUNNING, hold.reason, inactive(C.RUNNING, IS_QUEUED))
    return [SetTrue(C.QUEUED, hold.reason, hold.message), running]


def _explained(seen: Health, snapshot: Snapshot, *, opened: bool, now: datetime) -> Health:
    """Return the state of the group with what else it waits for. `opened`: this reconcile opens the rendezvous."""
    if seen.running and snapshot.job.status.awaiting_rendezvous and not opened:
        seen = replace(seen, running=False, reason=Reason.WORKERS_STARTING, message=_meeting(snapshot, now))
    if snapshot.size.indivisible_because:
        return replace(seen, running=False, reason=Reason.INVALID_SPEC, message=NOT_STARTED)
    if snapshot.gang.unavailable_because:
        return replace(seen, running=False, reason=Reason.GANG_UNAVAILABLE, message=NOT_STARTED)
    if not snapshot.current and snapshot.old:
        return replace(
            seen, message=f"waiting for {counted(len(snapshot.old), 'pod')} of earlier attempts to terminate"
        )
    if snapshot.dns_problem:
        return replace(seen, message=f"{seen.message}; {snapshot.dns_problem}")
    return seen


def _conditions(snapshot: Snapshot, seen: Health) -> list[ConditionUpdate]:
    """Return the updates of Scheduled and Stalled for an active job."""
    unplaced = seen.reason if seen.reason is Reason.UNSCHEDULABLE else Reason.WORKERS_PENDING
    return [
        SetTrue(C.SCHEDULED, Reason.WORKERS_SCHEDULED, "all workers have a node")
        if seen.scheduled
        else SetFalse(C.SCHEDULED, unplaced, _without_node(snapshot, seen.reason)),
        _stalled(snapshot, seen),
    ]


def _stalled(snapshot: Snapshot, seen: Health) -> ConditionUpdate:
    """Return the update of Stalled: whether the spec cannot be followed, and the fix."""
    reason, why = _stalled_because(snapshot)
    return SetTrue(C.STALLED, reason, why) if why else Clear(C.STALLED, seen.reason, "the job continues")


def _stalled_because(snapshot: Snapshot) -> tuple[Reason, str]:
    """Return why the spec cannot be followed, and the fix; an empty text where it can."""
    if why := snapshot.size.invalid_because:
        return Reason.INVALID_SPEC, why
    return Reason.GANG_UNAVAILABLE, snapshot.gang.unavailable_because


def _restarted(status: TrainingJobStatus, seen: Health) -> list[ConditionUpdate]:
    """Return the update of Restarting once the group runs: the reason for the restart is useful while the attempt runs, too."""
    restarting = status.condition(C.RESTARTING) if seen.running else None
    if restarting is None:
        return []
    why = f"attempt {status.attempt} started after {without_last_clause(restarting.message)}"
    return [Clear(C.RESTARTING, seen.reason, why)]


def _running(status: TrainingJobStatus, seen: Health, *, has_pods: bool) -> ConditionUpdate:
    """Return the condition Running."""
    if seen.running:
        return SetTrue(C.RUNNING, seen.reason, seen.message)
    restarting = status.condition(C.RESTARTING) if status.holds(C.RESTARTING) else None
    if restarting and not has_pods:
        # Until a pod of the new attempt exists, the reason for the restart is more useful than "0 of 3 workers".
        return SetFalse(C.RUNNING, restarting.reason, inactive(C.RUNNING, RESTARTS))
    return SetFalse(C.RUNNING, seen.reason, seen.message)


def _phase(status: TrainingJobStatus, seen: Health) -> Phase:
    if seen.running:
        return Phase.RUNNING
    return Phase.RESTARTING if status.holds(C.RESTARTING) else Phase.PENDING


def _sized(snapshot: Snapshot, resizing: str) -> list[ConditionUpdate]:
    limited: ConditionUpdate = Clear(C.SCALING_LIMITED, Reason.SIZE_ALLOWED, "replicas is a size that is allowed")
    if snapshot.size.limited_because:
        limited = SetTrue(C.SCALING_LIMITED, Reason.SIZE_NOT_ALLOWED, snapshot.size.limited_because)
    if resizing:
        return [limited, SetTrue(C.RESIZING, Reason.WORKERS_JOINING, resizing)]
    size = counted(snapshot.size.desired, "worker")
    return [limited, Clear(C.RESIZING, Reason.RESIZED, f"the group has {size}")]


def _meeting(snapshot: Snapshot, now: datetime) -> str:
    """Return the message of a group that waits for its rendezvous: ready workers, backoff, pods that have yet to end."""
    count, desired = len(snapshot.ready_workers), len(snapshot.job.members(snapshot.size.desired))
    what = "members" if snapshot.job.role_members else "workers"
    left = [pod.name for pod in snapshot.old if not pod.has_stopped]
    until = f"; waiting for pod {left[0]} of an earlier attempt to terminate" if left else ""
    begin = snapshot.job.status.internal.backoff.not_before
    at = f"; backoff until {begin:%H:%M:%S} UTC" if begin and now < begin else ""
    return f"{count} of {desired} {what} are ready for attempt {snapshot.job.status.attempt}{at}{until}"


def _without_node(snapshot: Snapshot, reason: Reason) -> str:
    """Return the message of Scheduled while it is False. Running has the message of the scheduler."""
    size, what = len(snapshot.job.members(snapshot.size.desired)), "member" if snapshot.job.role_members else "worker"
    placed = sum(pod.state is not State.PENDING for pod in snapshot.current)
    return f"{placed} of {counted(size, what)} {'has' if size == 1 else 'have'} a node{_avoiding(snapshot.job, reason)}"


def _avoiding(job: JobView, reason: Reason) -> str:
    """Return the avoided nodes as a part of the message: the scheduler only reports that a node did not match."""
    nodes = (
        ", ".join(node.name for node in required(job.status.suspect_nodes)) if reason is Reason.UNSCHEDULABLE else ""
    )
    return f"; this job avoids {nodes} (see status.suspectNodes)" if nodes else ""


def _unwell(pods: tuple[PodView, ...]) -> list[WorkerStatus]:
    return [worker for pod in pods if (worker := _unwell_worker(pod))][:LISTED]


def _unwell_worker(pod: PodView) -> WorkerStatus | None:
    seen = pod.state
    why = pod.issue or pod.disruption
    if failed := pod.exit if seen is State.FAILED else None:
        message = f"exit code {failed.code}"
        return WorkerStatus(name=pod.name, node=pod.node, state=seen, reason=failed.reason, message=message)
    if why is None or seen in {State.RUNNING, State.SUCCEEDED}:
        return None
    return WorkerStatus(name=pod.name, node=pod.node, state=seen, reason=why.reason, message=why.message[:1024])
