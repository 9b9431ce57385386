"""Compose the transitions of a job: each is a change of the status, with its events. Pure.

A transition holds no actions; the next reconcile acts on the stored status (see `Plan`). An update of a condition replaces
the stored condition, and changes its time only with its status.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import assert_never

from trainyard.api.internal_status import Backoff, Group, Rendezvous, WorkerOrder
from trainyard.api.reasons import Reason
from trainyard.api.roles import is_worker
from trainyard.api.status import Condition, ConditionType as C, Phase, StatusChanges, TrainingJobStatus
from trainyard.domain.decisions import (
    Admit,
    Adopt,
    Clear,
    Complete,
    ConditionUpdate,
    Decision,
    Event,
    Fail,
    Hold,
    Outcome,
    Plan,
    Remove,
    Restart,
    Resume,
    SetFalse,
    SetTrue,
    Suspend,
)
from trainyard.domain.progress import goodput
from trainyard.domain.recovery.suspect_nodes import remembered
from trainyard.domain.scaling.group_size import largest_allowed
from trainyard.domain.state.object_names import worker_host
from trainyard.domain.state.roles import deciding, member
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.status.inactive import HAS_FAILED, HAS_FINISHED, IS_QUEUED, IS_SUSPENDED, RESTARTS, inactive
from trainyard.domain.status.rank_warnings import with_rank_warnings

EXPECTED = frozenset(
    {Reason.RESIZED, Reason.NODES_RELEASED, Reason.TEMPLATE_CHANGED, Reason.NO_PYTHON, Reason.AGENT_DISABLED}
)
"""The reasons of restarts that the user, the agent or the end of an avoidance has caused: nothing has gone wrong."""
ORDER: dict[str, int] = {kind: position for position, kind in enumerate(C)}
MAX_MESSAGE_LENGTH = 32768
"""The limit of the CRD, in characters. The API server's rejection of a large template can be longer."""
OF_RUNNING_RANKS = (C.STRAGGLING, C.HANG_SUSPECTED, C.HANG_DETECTION_LIMITED)
"""The conditions about ranks that run: they end with the job."""
OF_ATTEMPT = (C.STRAGGLING, C.HANG_SUSPECTED, C.FAILURE_HIDDEN, C.GROUP_SPLIT, C.RDMA_UNUSED)
"""The conditions about the ranks of one attempt."""


def store(job: JobView, outcome: Outcome, now: datetime) -> Plan:
    """Return the plan that stores the outcome in the status."""
    changes, status = outcome.changes, job.status
    if outcome.conditions:
        conditions = apply_conditions(status, outcome.conditions, job.generation, now)
        changes = {**changes, "conditions": conditions}
    status = status.evolve(**changes) if changes else status
    return Plan(status, outcome.actions, outcome.events, outcome.requeue_after)


def start(job: JobView, now: datetime) -> StatusChanges:
    """Return the changes with which a job starts, or a suspended job resumes."""
    return {
        "active_since": now,
        "attempt_start_time": now,
        "start_time": job.status.start_time or now,
        "suspect_nodes": remembered(job, now),
    }


def conclude(decision: Outcome | Decision, snapshot: Snapshot, now: datetime) -> Plan:
    """Return the plan that stores the decision, and warns of ranks that fail or train apart."""
    outcome = _outcome(decision, snapshot, now)
    if not snapshot.job.status.finished:
        outcome = with_rank_warnings(outcome, snapshot, now)
    return store(snapshot.job, outcome, now)


def _outcome(decision: Outcome | Decision, snapshot: Snapshot, now: datetime) -> Outcome:
    match decision:
        case Outcome():
            return decision
        case Adopt():
            return adopt(snapshot.job, decision)
        case Complete():
            return complete(snapshot.job, snapshot.size.current, now)
        case Suspend():
            return suspend(snapshot, now)
        case Resume():
            return resume(snapshot.job, now)
        case Hold():
            return hold(snapshot, decision, now)
        case Admit():
            return admit(snapshot.job, decision, now)
        case Fail():
            return fail(snapshot.job, decision, now)
        case Restart():
            return new_attempt(snapshot, decision, now)
        case _:
            assert_never(decision)


def resume(job: JobView, now: datetime) -> Outcome:
    """Return the transition that resumes a suspended job. One with a queue waits there first."""
    # The image may have changed: the agent may be able to run in it.
    resumed: list[ConditionUpdate] = [
        SetFalse(C.SUSPENDED, Reason.RESUMED, "lifecycle.suspend is false"),
        Remove(C.AGENT_INJECTED),
    ]
    if job.queue is not None:
        note = f"the job enters the queue {job.queue.queue} again"
        return Outcome(
            {"phase": Phase.QUEUED, "observed_generation": job.generation},
            [*resumed, SetTrue(C.QUEUED, Reason.WAITING_FOR_QUOTA, note)],
            events=[Event("Normal", Reason.RESUMED, note)],
        )
    return Outcome(
        {**start(job, now), "phase": Phase.PENDING, "observed_generation": job.generation},
        resumed,
        events=[Event("Normal", Reason.RESUMED, f"the job resumes with attempt {job.status.attempt}")],
    )


def hold(snapshot: Snapshot, decision: Hold, now: datetime) -> Outcome:
    """Return the transition of a job that waits in its queue from now on. If it has pods, its attempt ends."""
    status, reason = snapshot.job.status, decision.reason
    changes: StatusChanges = {**_to_rest(snapshot, now), "phase": Phase.QUEUED}
    ran = status.internal.admission is not None
    bad = ran or reason in {Reason.QUEUE_UNAVAILABLE, Reason.ADMISSION_UNUSABLE, Reason.GANG_UNAVAILABLE}
    return Outcome(
        changes,
        [SetTrue(C.QUEUED, reason, decision.message), *_resting(reason, IS_QUEUED)],
        events=[Event("Warning" if bad else "Normal", reason, decision.message)],
    )


def admit(job: JobView, decision: Admit, now: datetime) -> Outcome:
    """Return the transition of a job that its queue has admitted. What was admitted is stored before pods are created."""
    reason = Reason.ADMITTED if decision.admission else Reason.QUEUE_REMOVED
    changes: StatusChanges = {"admission": decision.admission, "observed_generation": job.generation}
    if job.status.queued:
        changes |= {**start(job, now), "phase": Phase.PENDING}
    return Outcome(
        changes,
        [Clear(C.QUEUED, reason, decision.message)],
        events=[Event("Normal", reason, decision.message)],
    )


def suspend(snapshot: Snapshot, now: datetime) -> Outcome:
    """Return the transition that suspends the job. Its attempt ends, its pods are deleted, and its active time stops."""
    message = "lifecycle.suspend is set: the job has no pods until it is set to false"
    changes: StatusChanges = {
        **_to_rest(snapshot, now),
        "phase": Phase.SUSPENDED,
        # The template may be changed before the job resumes: earlier failures do not predict those of the next attempt.
        **_without_streaks(snapshot.job.status),
    }
    conditions: list[ConditionUpdate] = [
        SetTrue(C.SUSPENDED, Reason.SUSPENDED, message),
        Clear(C.QUEUED, Reason.SUSPENDED, inactive(C.QUEUED, IS_SUSPENDED)),
        *_resting(Reason.SUSPENDED, IS_SUSPENDED),
    ]
    return Outcome(changes, conditions, events=[Event("Normal", Reason.SUSPENDED, message)])


def _to_rest(snapshot: Snapshot, now: datetime) -> StatusChanges:
    """Return the changes of a job that is to have no pods for now. Its quota, if it has any, is given back."""
    job, status = snapshot.job, snapshot.job.status
    changes: StatusChanges = {"observed_generation": job.generation, **_inactive(status, now), "admission": None}
    if snapshot.current or status.internal.launched_attempt == status.attempt:
        changes |= _next_attempt(status, snapshot.size.current, now)
    return changes


def _resting(reason: Reason, because: str) -> list[ConditionUpdate]:
    """Return the conditions of a job that is to have no pods for now."""
    return [
        *(SetFalse(kind, reason, inactive(kind, because)) for kind in (C.SCHEDULED, C.RUNNING)),
        *(
            Clear(kind, reason, inactive(kind, because))
            for kind in (C.RESTARTING, C.RESIZING, C.HANG_DETECTION_LIMITED, *OF_ATTEMPT)
        ),
    ]


def adopt(job: JobView, decision: Adopt) -> Outcome:
    """Return the transition that adopts the attempt of a pod or an agent after the status was lost, for example by a restore."""
    stored, attempt = job.status.attempt, decision.attempt
    note = f"workers are at attempt {attempt}, and the stored status has attempt {stored}: adopting attempt {attempt}"
    changes: StatusChanges = {
        "attempt": attempt,
        "launched_attempt": attempt - 1,
        "group": decision.group,
        # That of another group, perhaps. Ranks that run keep theirs.
        "worker_order": None,
        "stragglers": [],
    }
    if decision.address:
        changes["rendezvous"] = Rendezvous(attempt=attempt, address=decision.address)
    return Outcome(changes, events=[Event("Warning", Reason.ATTEMPT_ADOPTED, note)])


def complete(job: JobView, workers: int, now: datetime) -> Outcome:
    """Return the transition of a job that has succeeded with so many workers."""
    message = _who_succeeded(deciding(job.spec, workers))
    size = len(job.members(workers))
    event = Event("Normal", Reason.WORKERS_SUCCEEDED, f"{message}, in attempt {job.status.attempt}")
    changes: StatusChanges = {**_finish(job, now), "phase": Phase.COMPLETE, "ready": f"{size}/{size}"}
    conditions = [*_finished(event), SetTrue(C.COMPLETE, Reason.WORKERS_SUCCEEDED, message)]
    return Outcome(changes, conditions, events=[event])


def _who_succeeded(members: Sequence[int]) -> str:
    """Return which members have decided about the job by their success."""
    if len(members) == 1:
        return f"{member(members[0])} succeeded"
    thing = "workers" if all(map(is_worker, members)) else "members that decide"
    return f"all {len(members)} {thing} succeeded"


def fail(job: JobView, decision: Fail, now: datetime) -> Outcome:
    """Return the transition of a job that has failed permanently."""
    event = Event("Warning", decision.reason, decision.message)
    workers = largest_allowed(job, job.spec.replicas) or job.spec.replicas
    changes: StatusChanges = {
        **_finish(job, now),
        "phase": Phase.FAILED,
        "ready": f"0/{len(job.members(workers))}",
        **decision.changes,
    }
    updates = [
        SetTrue(C.FAILED, decision.reason, decision.message),
        SetTrue(C.STALLED, decision.reason, HAS_FAILED),
    ]
    return Outcome(changes, [*_finished(event), *updates], events=[event])


def new_attempt(snapshot: Snapshot, decision: Restart, now: datetime) -> Outcome:
    """Return the transition that ends the current attempt and starts the next one."""
    job, status, reason = snapshot.job, snapshot.job.status, decision.reason
    when = f", in {decision.delay_seconds} seconds" if decision.delay_seconds else ""
    message = f"{decision.message}; {decision.scope} as attempt {status.attempt + 1}{when}"
    restarts = decision.changes.get("restarts", status.restarts)
    changes: StatusChanges = {
        "observed_generation": job.generation,
        **_next_attempt(status, snapshot.size.current, now),
        "suspect_nodes": remembered(job, now),
        "goodput": goodput.at_end(status, now, restarts=True),
        **(_without_streaks(status) if decision.afresh else {}),
        **decision.changes,
        "worker_order": _kept_order(snapshot, decision.changes.get("group")),
        "phase": Phase.RESTARTING,
        "restart_count": restarts.failures + restarts.disruptions,
        "workers": [],
    }
    if job.uses_torchrun_rendezvous and changes["group"] is not None:
        # torchrun forms the group by itself: the rendezvous is open at once.
        changes["rendezvous"] = Rendezvous(attempt=status.attempt + 1, address=worker_host(job.name, 0))
    conditions = [
        SetTrue(C.RESTARTING, reason, message),
        SetFalse(C.RUNNING, reason, inactive(C.RUNNING, RESTARTS)),
        *(Clear(kind, reason, inactive(kind, RESTARTS)) for kind in OF_ATTEMPT),
        *decision.conditions,
    ]
    return Outcome(changes, conditions, events=[Event("Normal" if reason in EXPECTED else "Warning", reason, message)])


def _next_attempt(status: TrainingJobStatus, workers: int, now: datetime) -> StatusChanges:
    """Return the changes that start the next attempt. `workers`: the size of the current one."""
    return {
        "attempt": status.attempt + 1,
        "attempt_start_time": now,
        "running_time": None,
        "previous_size": workers,
        "group": None,
        "worker_order": None,
        "succeeded": None,
        "coordinated_stop": None,
        "stragglers": [],
    }


def _kept_order(snapshot: Snapshot, group: Group | None) -> WorkerOrder | None:
    """Return the order of workers by rank where the next attempt keeps pods and the size: no other worker gets other ranks."""
    keeps_ranks = group is not None and group.size == snapshot.size.current
    return snapshot.job.status.internal.worker_order if keeps_ranks else None


def _without_streaks(status: TrainingJobStatus) -> StatusChanges:
    """Return the changes of a job that was changed: no backoff, and failures and releases in a row are counted from zero."""
    budget = status.internal.restart_budget.evolve(at_same_step=None, out_of_memory=None, repeated=None)
    return {"backoff": Backoff(), "restart_budget": budget, "releases": None}


def _finish(job: JobView, now: datetime) -> StatusChanges:
    """Return the changes of a job that finishes."""
    return {"observed_generation": job.generation, "completion_time": now, **_inactive(job.status, now)}


def _inactive(status: TrainingJobStatus, now: datetime) -> StatusChanges:
    """Return the changes of a job that finishes or is suspended: its active time stops."""
    return {
        "active_seconds": int(goodput.active_time(status, now).total_seconds()),
        "goodput": goodput.at_end(status, now),
        "active_since": None,
        "workers": [],
        "stragglers": [],
        "joining": None,
    }


def _finished(event: Event) -> list[ConditionUpdate]:
    """Return the conditions of a job that finishes by this event, but for Complete and Failed."""
    return [
        # Running has the reason for which the job finished: `kubectl get -o wide` prints it.
        SetFalse(C.RUNNING, event.reason, inactive(C.RUNNING, HAS_FINISHED)),
        *(Clear(kind, event.reason, inactive(kind, HAS_FINISHED)) for kind in (*OF_RUNNING_RANKS, C.RESIZING)),
        Clear(C.RESTARTING, Reason.JOB_FINISHED, inactive(C.RESTARTING, HAS_FINISHED)),
    ]


def apply_conditions(
    status: TrainingJobStatus, updates: Iterable[ConditionUpdate], generation: int, now: datetime
) -> list[Condition]:
    """Return the conditions of `status` with `updates` applied. All others stay as they are, unknown types too."""
    result = {c.type: c for c in status.conditions}
    for update in updates:
        before = result.get(update.kind)
        match update:
            case Remove():
                result.pop(update.kind, None)
            case Clear() if before is None or before.status != "True":
                continue
            case SetTrue() | SetFalse() | Clear():
                result[update.kind] = _updated(before, update, generation, now)
            case _:
                assert_never(update)
    return sorted(result.values(), key=lambda c: ORDER.get(c.type, len(ORDER)))


def _updated(before: Condition | None, update: SetTrue | SetFalse | Clear, generation: int, now: datetime) -> Condition:
    value = "True" if isinstance(update, SetTrue) else "False"
    return Condition(
        type=update.kind,
        status=value,
        reason=update.reason,
        message=update.message[:MAX_MESSAGE_LENGTH],
        last_transition_time=now if before is None or before.status != value else before.last_transition_time,
        observed_generation=generation,
    )
