"""Compose the transitions of a job: each is a change of the status, with its events. Pure.

A transition holds no actions; the next reconcile acts on the stored status (see `Plan`).
"""

from datetime import datetime
from typing import assert_never

from trainyard.api.internal_status import Backoff, Rendezvous
from trainyard.api.reasons import Reason
from trainyard.api.spec import Success
from trainyard.api.status import ConditionType as C, Phase, StatusChanges, TrainingJobStatus
from trainyard.domain.actions import Event, Outcome, Plan
from trainyard.domain.conditions import Clear, ConditionUpdate, Remove, SetFalse, SetTrue, apply_conditions
from trainyard.domain.decisions import Adopt, Complete, Decision, Fail, Restart, Resume, Suspend
from trainyard.domain.progress import goodput
from trainyard.domain.recovery.restart_budget import reset_streaks
from trainyard.domain.recovery.suspect_nodes import remembered
from trainyard.domain.scaling.group_size import largest_allowed
from trainyard.domain.state.snapshot import JobView, Snapshot

EXPECTED = frozenset(
    {Reason.RESIZED, Reason.NODES_RELEASED, Reason.TEMPLATE_CHANGED, Reason.NO_PYTHON, Reason.AGENT_DISABLED}
)
"""The reasons of restarts that the user, the agent or the end of an avoidance has caused: nothing has gone wrong."""

OF_ATTEMPT = (C.STRAGGLING, C.FAILURE_HIDDEN, C.GROUP_SPLIT)
"""The conditions that describe the ranks of one attempt."""


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


def apply(decision: Decision, snapshot: Snapshot, now: datetime) -> Outcome:
    """Return the outcome that stores the decision."""
    match decision:
        case Adopt():
            return adopt(snapshot.job, decision)
        case Complete():
            return complete(snapshot.job, snapshot.size.current, now)
        case Suspend():
            return suspend(snapshot, now)
        case Resume():
            return resume(snapshot.job, now)
        case Fail():
            return fail(snapshot.job, decision, now)
        case Restart():
            return new_attempt(snapshot, decision, now)
        case _:
            assert_never(decision)


def resume(job: JobView, now: datetime) -> Outcome:
    """Return the transition that resumes a suspended job."""
    return Outcome(
        {**start(job, now), "phase": Phase.PENDING, "observed_generation": job.generation},
        # The image may have changed: the agent may be able to run in it.
        [SetFalse(C.SUSPENDED, Reason.RESUMED, "the job continues"), Remove(C.AGENT_INJECTED)],
        events=[Event("Normal", Reason.RESUMED, f"the job resumes with attempt {job.status.attempt}")],
    )


def suspend(snapshot: Snapshot, now: datetime) -> Outcome:
    """Return the transition that suspends the job. Its attempt ends, its pods are deleted, and its active time stops."""
    job, status = snapshot.job, snapshot.job.status
    message = "lifecycle.suspend is set: the job has no pods until it is set to false"
    changes: StatusChanges = {
        "observed_generation": job.generation,
        "phase": Phase.SUSPENDED,
        **_inactive(status, now),
        # The template may be changed before the job resumes: earlier failures do not predict those of the next attempt.
        "backoff": Backoff(),
        "restart_budget": reset_streaks(status),
    }
    if snapshot.current or status.internal.launched_attempt == status.attempt:
        changes |= _next_attempt(status, snapshot.size.current, now)
    conditions: list[ConditionUpdate] = [
        SetTrue(C.SUSPENDED, Reason.SUSPENDED, message),
        SetFalse(C.SCHEDULED, Reason.SUSPENDED, message),
        SetFalse(C.RUNNING, Reason.SUSPENDED, message),
        *(Clear(kind, Reason.SUSPENDED, message) for kind in (C.RESTARTING, C.RESIZING, *OF_ATTEMPT)),
    ]
    return Outcome(changes, conditions, events=[Event("Normal", Reason.SUSPENDED, message)])


def adopt(job: JobView, decision: Adopt) -> Outcome:
    """Return the transition that adopts the attempt of a pod or an agent after the status was lost, for example by a restore."""
    stored, attempt = job.status.attempt, decision.attempt
    note = f"workers are at attempt {attempt}, and the stored status has attempt {stored}: adopting attempt {attempt}"
    changes: StatusChanges = {
        "attempt": attempt,
        "launched_attempt": attempt - 1,
        "group": decision.group,
        "stragglers": [],
    }
    if decision.address:
        changes["rendezvous"] = Rendezvous(attempt=attempt, address=decision.address)
    return Outcome(changes, events=[Event("Warning", Reason.ATTEMPT_ADOPTED, note)])


def complete(job: JobView, workers: int, now: datetime) -> Outcome:
    """Return the transition of a job that has succeeded with so many workers."""
    by_all = job.spec.lifecycle.success is Success.ALL_WORKERS
    message = f"all {workers} workers succeeded" if by_all and workers > 1 else "worker 0 succeeded"
    event = Event("Normal", Reason.WORKERS_SUCCEEDED, f"{message}, in attempt {job.status.attempt}")
    changes: StatusChanges = {**_finish(job, now), "phase": Phase.COMPLETE, "ready": f"{workers}/{workers}"}
    conditions = [*_finished(event), SetTrue(C.COMPLETE, Reason.WORKERS_SUCCEEDED, message)]
    return Outcome(changes, conditions, events=[event])


def fail(job: JobView, decision: Fail, now: datetime) -> Outcome:
    """Return the transition of a job that has failed permanently."""
    event = Event("Warning", decision.reason, decision.message)
    workers = largest_allowed(job.spec, job.spec.replicas) or job.spec.replicas
    changes: StatusChanges = {
        **_finish(job, now),
        "phase": Phase.FAILED,
        "ready": f"0/{workers}",
        **decision.changes,
    }
    updates = [SetTrue(kind, decision.reason, decision.message) for kind in (C.FAILED, C.STALLED)]
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
        "goodput": goodput.at_restart(status, goodput.active_time(status, now)),
        **decision.changes,
        "phase": Phase.RESTARTING,
        "restart_count": restarts.failures + restarts.disruptions,
        "workers": [],
    }
    conditions = [
        SetTrue(C.RESTARTING, reason, message),
        SetFalse(C.RUNNING, reason, message),
        *(Clear(kind, reason, message) for kind in OF_ATTEMPT),
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
        "succeeded": None,
        "coordinated_stop": None,
        "stragglers": [],
    }


def _finish(job: JobView, now: datetime) -> StatusChanges:
    """Return the changes of a job that finishes."""
    return {"observed_generation": job.generation, "completion_time": now, **_inactive(job.status, now)}


def _inactive(status: TrainingJobStatus, now: datetime) -> StatusChanges:
    """Return the changes of a job that finishes or is suspended: its active time stops."""
    active = goodput.active_time(status, now)
    return {
        "active_seconds": int(active.total_seconds()),
        "goodput": goodput.at_end(status, active),
        "active_since": None,
        "workers": [],
        "stragglers": [],
        "joining": None,
    }


def _finished(event: Event) -> list[ConditionUpdate]:
    """Return the conditions of a job that finishes by this event, but for Complete and Failed."""
    return [
        # Running has the reason for which the job finished: `kubectl get -o wide` prints it.
        SetFalse(C.RUNNING, event.reason, event.note),
        *(Clear(kind, event.reason, event.note) for kind in (C.STRAGGLING, C.RESIZING)),
        Clear(C.RESTARTING, Reason.JOB_FINISHED, "the job has finished"),
    ]
