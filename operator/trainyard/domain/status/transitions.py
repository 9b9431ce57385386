"""Compose the transitions of a job: each is a status to store, with its events. Pure.

A transition holds no actions; the next reconcile acts on the stored status (see `Plan`).
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import assert_never

from trainyard.api.agent_protocol import AgentState
from trainyard.api.constants import AGENT
from trainyard.api.internal_status import Backoff, Rendezvous
from trainyard.api.reasons import Reason
from trainyard.api.spec import Success
from trainyard.api.status import ConditionType as C, Phase, StatusChanges, TrainingJobStatus
from trainyard.domain.actions import Event, Plan
from trainyard.domain.conditions import (
    ConditionUpdate,
    apply_conditions,
    clear_conditions,
    condition_false,
    condition_true,
)
from trainyard.domain.decisions import Decision, Fail, Restart
from trainyard.domain.progress import goodput
from trainyard.domain.recovery.agent_injection import cannot_run
from trainyard.domain.recovery.restart_budget import reset_streaks
from trainyard.domain.recovery.restart_scope import observed_group
from trainyard.domain.recovery.stored_times import active_time
from trainyard.domain.recovery.suspect_nodes import remembered
from trainyard.domain.scaling.group_size import largest_allowed
from trainyard.domain.state.snapshot import JobView, Snapshot


def start(job: JobView, now: datetime) -> TrainingJobStatus:
    """Return the first status of a job, or that with which a suspended job resumes."""
    status = job.status
    update: StatusChanges = {
        "active_since": now,
        "attempt_start_time": now,
        "start_time": status.start_time or now,
        "suspect_nodes": remembered(job, now),
    }
    if status.holds(C.SUSPENDED):
        resumed = apply_conditions(
            status, [condition_false(C.SUSPENDED, Reason.RESUMED, "the job goes on")], job.generation, now
        )
        # The image may have changed: the agent may be able to run in it.
        update |= {"conditions": [c for c in resumed if c.type != C.AGENT_INJECTED], "phase": Phase.PENDING}
    return status.evolve(**update)


def resume(job: JobView, now: datetime) -> Plan:
    """Return the plan that resumes a suspended job."""
    note = f"the job resumes with attempt {job.status.attempt}"
    return Plan(_observed(job, start(job, now)), events=[Event("Normal", Reason.RESUMED, note)])


def suspend(snapshot: Snapshot, now: datetime) -> Plan:
    """Return the plan that suspends the job. Its attempt ends, its pods are deleted, and its active time stops."""
    job, status = snapshot.job, snapshot.job.status
    message = "lifecycle.suspend is set: the job has no pods until it is set to false"
    updates = [
        condition_true(C.SUSPENDED, Reason.SUSPENDED, message),
        condition_false(C.SCHEDULED, Reason.SUSPENDED, message),
        condition_false(C.RUNNING, Reason.SUSPENDED, message),
        *clear_conditions(status, [C.RESTARTING, C.STRAGGLING, C.RESIZING], Reason.SUSPENDED, message),
    ]
    update: StatusChanges = {
        "phase": Phase.SUSPENDED,
        "active_since": None,
        "active_seconds": int(active_time(status, now).total_seconds()),
        "goodput": goodput.settled(status, active_time(status, now)),
        "conditions": apply_conditions(status, updates, job.generation, now),
        # The template may be changed before the job resumes: earlier failures do not predict those of the next attempt.
        "backoff": Backoff(),
        "restart_budget": reset_streaks(status),
        "workers": [],
        "stragglers": [],
        "joining": None,
    }
    if snapshot.current or status.internal.launched_attempt == status.attempt:
        update |= _next_attempt(status, snapshot.size.current, now)
    return Plan(_observed(job, status.evolve(**update)), events=[Event("Normal", Reason.SUSPENDED, message)])


def apply(decision: Decision, snapshot: Snapshot, now: datetime) -> Plan:
    """Return the plan that stores the decision."""
    match decision:
        case Fail():
            return fail(snapshot.job, decision, now)
        case Restart():
            return new_attempt(snapshot, decision, now)
        case _:
            assert_never(decision)


def open_rendezvous(status: TrainingJobStatus, address: str) -> TrainingJobStatus:
    """Return the status with the rendezvous of the current attempt open: all its workers are ready and may start."""
    return status.evolve(rendezvous=Rendezvous(attempt=status.attempt, address=address))


def without_coordinator() -> Restart:
    """Return the restart of workers that wait for a rendezvous after the coordinator was disabled."""
    message = "the rendezvous cannot open: the coordinator is disabled"
    return Restart(Reason.AGENT_DISABLED, message)


def on_released_nodes(nodes: Sequence[str]) -> Restart:
    """Return the restart of unscheduled workers whose pods exclude nodes that the job does not avoid any more."""
    several = len(nodes) > 1
    message = f"workers wait for a node, and {', '.join(nodes)} {'are' if several else 'is'} not avoided any more"
    return Restart(Reason.NODES_RELEASED, message)


def without_agent(problem: str) -> Restart:
    """Return the restart without the agent, which cannot run in the image."""
    return Restart(Reason.NO_PYTHON, f"{problem}: {AGENT} is left out", conditions=[cannot_run(problem)])


def adopt(snapshot: Snapshot, attempt: int) -> Plan:
    """Return the plan that adopts the attempt of a pod or an agent after the status was lost, for example by a restore."""
    status = snapshot.job.status
    pods, group = observed_group(snapshot, attempt)
    note = f"workers are at attempt {attempt}, the status knew of {status.attempt} only: the job goes on from there"
    update: StatusChanges = {"attempt": attempt, "launched_attempt": attempt - 1, "group": group, "stragglers": []}
    agents = [snapshot.agents.get(pod.uid) for pod in pods]
    # Agents that wait beside others that run may be those of joining workers. Then the rendezvous stays closed.
    mixed = {agent.state for agent in agents if agent} >= {AgentState.RUNNING, AgentState.WAITING}
    if group and not mixed and (address := next((pod.ip for pod in pods if pod.index == 0), "")):
        # The workers run, or were about to start.
        update["rendezvous"] = Rendezvous(attempt=attempt, address=address)
    return Plan(status.evolve(**update), events=[Event("Warning", Reason.ATTEMPT_ADOPTED, note)])


def complete(job: JobView, workers: int, now: datetime) -> Plan:
    """Return the plan of a job that has succeeded with so many workers."""
    by_all = job.spec.lifecycle.success is Success.ALL_WORKERS
    message = f"all {workers} workers succeeded" if by_all and workers > 1 else "worker 0 succeeded"
    event = Event("Normal", Reason.WORKERS_SUCCEEDED, f"{message}, in attempt {job.status.attempt}")
    updates = [condition_true(C.COMPLETE, Reason.WORKERS_SUCCEEDED, message)]
    return _finish(job, Phase.COMPLETE, updates, event, f"{workers}/{workers}", now)


def fail(job: JobView, decision: Fail, now: datetime) -> Plan:
    """Return the plan of a job that has failed permanently."""
    reason, message = decision.reason, decision.message
    workers = largest_allowed(job.spec, job.spec.replicas) or job.spec.replicas
    updates = [condition_true(C.FAILED, reason, message), condition_true(C.STALLED, reason, message)]
    plan = _finish(job, Phase.FAILED, updates, Event("Warning", reason, message), f"0/{workers}", now)
    return replace(plan, status=plan.status.evolve(**decision.changes))


def new_attempt(snapshot: Snapshot, decision: Restart, now: datetime) -> Plan:
    """Return the plan that ends the current attempt and starts the next one."""
    job, status, reason = snapshot.job, snapshot.job.status, decision.reason
    when = f", in {decision.delay_seconds} seconds" if decision.delay_seconds else ""
    message = f"{decision.message}; {decision.scope} as attempt {status.attempt + 1}{when}"
    updates = [
        condition_true(C.RESTARTING, reason, message),
        condition_false(C.RUNNING, reason, message),
        *clear_conditions(status, [C.STRAGGLING], reason, message),
        *decision.conditions,
    ]
    restarts = decision.changes.get("restarts", status.restarts)
    changes: StatusChanges = {
        "suspect_nodes": remembered(job, now),
        "goodput": goodput.at_restart(status, active_time(status, now)),
        **_next_attempt(status, snapshot.size.current, now),
        **decision.changes,
        "phase": Phase.RESTARTING,
        "conditions": apply_conditions(status, updates, job.generation, now),
        "restart_count": restarts.failures + restarts.disruptions,
        "workers": [],
    }
    expected = reason in {Reason.RESIZED, Reason.NODES_RELEASED}
    event = Event("Normal" if expected else "Warning", reason, message)
    return Plan(_observed(job, status.evolve(**changes)), events=[event])


def _next_attempt(status: TrainingJobStatus, workers: int, now: datetime) -> StatusChanges:
    """Return the changes that start the next attempt. `workers`: the size of the current one."""
    return {
        "attempt": status.attempt + 1,
        "attempt_start_time": now,
        "running_time": None,
        "previous_size": workers,
        "group": None,
        "coordinated_stop": None,
        "stragglers": [],
    }


def _finish(
    job: JobView, phase: Phase, updates: Sequence[ConditionUpdate], event: Event, ready: str, now: datetime
) -> Plan:
    status = job.status
    # Running has the reason for which the job finished: `kubectl get -o wide` prints it.
    updates = [
        condition_false(C.RUNNING, event.reason, event.note),
        *clear_conditions(status, [C.STRAGGLING, C.RESIZING], event.reason, event.note),
        *clear_conditions(status, [C.RESTARTING], Reason.JOB_FINISHED, "the job has finished"),
        *updates,
    ]
    update: StatusChanges = {
        "phase": phase,
        "completion_time": now,
        "active_seconds": int(active_time(status, now).total_seconds()),
        "goodput": goodput.settled(status, active_time(status, now)),
        "active_since": None,
        "conditions": apply_conditions(status, updates, job.generation, now),
        "ready": ready,
        "workers": [],
        "stragglers": [],
        "joining": None,
    }
    return Plan(_observed(job, status.evolve(**update)), events=[event])


def _observed(job: JobView, status: TrainingJobStatus) -> TrainingJobStatus:
    return status.evolve(observed_generation=job.generation)
