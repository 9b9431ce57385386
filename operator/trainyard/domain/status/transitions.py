"""Verdicts: the points where a job moves on. Each is a status to be stored, with the events that tell of it.

A verdict holds no actions; the next pass acts on what was stored (see `Plan`).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trainyard.api.agent_protocol import AgentState
from trainyard.api.constants import AGENT
from trainyard.api.internal_status import Backoff, Rendezvous, RestartBudget
from trainyard.api.reasons import Reason
from trainyard.api.recovery import RestartScope
from trainyard.api.spec import Success
from trainyard.api.status import ConditionType as C, Phase, StatusChanges, TrainingJobStatus
from trainyard.domain.actions import Event, Plan
from trainyard.domain.conditions import Saying, no, over, said, yes
from trainyard.domain.progress import goodput
from trainyard.domain.recovery.agent_injection import unfit
from trainyard.domain.recovery.failure_rules import STEADY, got_further, more
from trainyard.domain.recovery.restart_budget import ended
from trainyard.domain.recovery.restart_scope import climb, known_group, met
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.recovery.stored_times import delay_after
from trainyard.domain.recovery.suspect_nodes import known, struck, told as told_of
from trainyard.domain.scaling.group_size import largest_allowed
from trainyard.domain.state.snapshot import JobView, Snapshot


def start(job: JobView, now: datetime) -> TrainingJobStatus:
    """The first status of a job, and the one with which a suspended job goes on."""
    status = job.status
    update: StatusChanges = {
        "active_since": now,
        "attempt_start_time": now,
        "start_time": status.start_time or now,
        "suspect_nodes": known(job, now),
    }
    if status.holds(C.SUSPENDED):
        resumed = said(status, [no(C.SUSPENDED, Reason.RESUMED, "the job goes on")], job.generation, now)
        # The image may be another one: whether the agent can run in it is to be seen.
        update |= {"conditions": [c for c in resumed if c.type != C.AGENT_INJECTED], "phase": Phase.PENDING}
    return status.evolve(**update)


def resume(job: JobView, now: datetime) -> Plan:
    """The suspension is over."""
    note = f"the job goes on with attempt {job.status.attempt}"
    return Plan(_observed(job, start(job, now)), events=[Event("Normal", Reason.RESUMED, note)])


def suspend(snapshot: Snapshot, now: datetime) -> Plan:
    """The job stops. The attempt that ran is over, so that its pods are deleted; the active clock stands still."""
    job, status = snapshot.job, snapshot.job.status
    message = "lifecycle.suspend is set: the job has no pods until it is taken back"
    sayings = [
        yes(C.SUSPENDED, Reason.SUSPENDED, message),
        no(C.SCHEDULED, Reason.SUSPENDED, message),
        no(C.RUNNING, Reason.SUSPENDED, message),
        *over(status, [C.RESTARTING, C.STRAGGLING, C.RESIZING], Reason.SUSPENDED, message),
    ]
    update: StatusChanges = {
        "phase": Phase.SUSPENDED,
        "active_since": None,
        "active_seconds": int(active(status, now).total_seconds()),
        "goodput": goodput.settled(status, active(status, now)),
        "conditions": said(status, sayings, job.generation, now),
        # Whoever takes the suspension back may have changed the template: earlier attempts say nothing of the next.
        "backoff": Backoff(),
        "restart_budget": forget_rows(status),
        "workers": [],
        "stragglers": [],
        "joining": None,
    }
    if snapshot.current or status.internal.launched_attempt == status.attempt:
        update |= _next_attempt(status, snapshot.size.current, now)
    return Plan(_observed(job, status.evolve(**update)), events=[Event("Normal", Reason.SUSPENDED, message)])


def restart(snapshot: Snapshot, cause: Cause, told: str, now: datetime, *, elsewhere: bool = False) -> Plan:
    """The group starts anew because of `cause`, which is counted here and nowhere else. `told` says what it was.

    `elsewhere`: not on the node of the cause.
    """
    job, status = snapshot.job, snapshot.job.status
    ran = now - status.running_time if status.running_time else timedelta()
    count = 0 if ran >= STEADY or got_further(status.internal.restart_budget, cause) else status.internal.backoff.count
    delay = delay_after(count)
    nodes = struck(job, cause, now, elsewhere=elsewhere)
    by = climb(snapshot, cause, nodes, ran)
    backoff = Backoff(
        count=more(count), not_before=now + timedelta(seconds=delay), scope=by.scope, scope_attempts=by.tries
    )
    told += told_of(status.suspect_nodes, nodes)
    when = f", in {delay} seconds" if delay else ""
    update: StatusChanges = {**ended(job, cause, now), "backoff": backoff, "suspect_nodes": nodes, "group": by.group}
    if by.scope in {RestartScope.PROCESS, RestartScope.CONTAINER}:
        update["launched_attempt"] = status.attempt + 1
    update |= met(job, by.group)
    return new_attempt(snapshot, cause.reason, told, update, now, how=f"{by.told} as attempt {{}}{when}")


def open_rendezvous(status: TrainingJobStatus, address: str) -> TrainingJobStatus:
    """All workers of an attempt that did not begin with all its pods are ready: they may start."""
    return status.evolve(rendezvous=Rendezvous(attempt=status.attempt, address=address))


def regroup(snapshot: Snapshot, now: datetime) -> Plan:
    """Workers wait for each other, and nobody can tell them when to begin: the operator was set up anew without a coordinator."""
    message = "workers wait for a word of the operator, which is set up without a coordinator now"
    return new_attempt(snapshot, Reason.AGENT_DISABLED, message, {}, now)


def release(snapshot: Snapshot, nodes: Sequence[str], now: datetime) -> Plan:
    """Workers wait for a place, and nodes that they were told to avoid are free to them again: their pods are made anew."""
    several = len(nodes) > 1
    message = f"workers wait for a node, and {', '.join(nodes)} {'are' if several else 'is'} not avoided any more"
    return new_attempt(snapshot, Reason.NODES_RELEASED, message, {}, now)


def without_agent(snapshot: Snapshot, why: str, now: datetime) -> Plan:
    """The agent cannot run in the image: the pods are made anew without it."""
    return new_attempt(snapshot, Reason.NO_PYTHON, f"{why}: {AGENT} is left out", {}, now, also=[unfit(why)])


def adopt(snapshot: Snapshot, attempt: int) -> Plan:
    """The status was lost (restored from a backup, say), and a pod, or an agent, knows better which attempt this is."""
    status = snapshot.job.status
    pods, group = known_group(snapshot, attempt)
    note = f"workers are at attempt {attempt}, the status knew of {status.attempt} only: the job goes on from there"
    update: StatusChanges = {"attempt": attempt, "launched_attempt": attempt - 1, "group": group, "stragglers": []}
    agents = [snapshot.agents.get(pod.uid) for pod in pods]
    # Some that wait beside others that run are perhaps none of them: they were to join. Then none is told to begin.
    mixed = {agent.state for agent in agents if agent} >= {AgentState.RUNNING, AgentState.WAITING}
    if group and not mixed and (address := next((pod.ip for pod in pods if pod.index == 0), "")):
        # They run, or were about to.
        update["rendezvous"] = Rendezvous(attempt=attempt, address=address)
    return Plan(status.evolve(**update), events=[Event("Warning", Reason.ATTEMPT_ADOPTED, note)])


def complete(job: JobView, workers: int, now: datetime) -> Plan:
    """The job, a group of so many workers, has succeeded."""
    by_all = job.spec.lifecycle.success is Success.ALL_WORKERS
    message = f"all {workers} workers succeeded" if by_all and workers > 1 else "worker 0 succeeded"
    event = Event("Normal", Reason.WORKERS_SUCCEEDED, f"{message}, in attempt {job.status.attempt}")
    sayings = [yes(C.COMPLETE, Reason.WORKERS_SUCCEEDED, message)]
    return _finish(job, Phase.COMPLETE, sayings, event, f"{workers}/{workers}", now)


def fail(job: JobView, reason: Reason, message: str, now: datetime, cause: Cause | None = None) -> Plan:
    """The job has failed; `message` names the cause."""
    workers = largest_allowed(job.spec, job.spec.replicas) or job.spec.replicas
    sayings = [yes(C.FAILED, reason, message), yes(C.STALLED, reason, message)]
    plan = _finish(job, Phase.FAILED, sayings, Event("Warning", reason, message), f"0/{workers}", now)
    if cause is None:
        return plan
    return Plan(plan.status.evolve(**ended(job, cause, now)), events=plan.events)


def active(status: TrainingJobStatus, now: datetime) -> timedelta:
    """For how long the job has been active, without the time in which it was suspended."""
    before = timedelta(seconds=status.internal.active_seconds)
    # A clock that was set back, or a status edited by hand, must not make it less.
    return before + max(timedelta(), now - status.internal.active_since) if status.internal.active_since else before


def new_attempt(
    snapshot: Snapshot,
    reason: Reason,
    message: str,
    update: StatusChanges,
    now: datetime,
    how: str = "all workers start anew as attempt {}",
    also: Sequence[Saying] = (),
) -> Plan:
    """The attempt is over because of `reason`, and the next one is to begin: with `update` in the status."""
    job, status = snapshot.job, snapshot.job.status
    told = f"{message}; {how.format(status.attempt + 1)}"
    sayings = [
        yes(C.RESTARTING, reason, told),
        no(C.RUNNING, reason, told),
        *over(status, [C.STRAGGLING], reason, told),
        *also,
    ]
    restarts = update.get("restarts", status.restarts)
    changes: StatusChanges = {
        "suspect_nodes": known(job, now),
        "goodput": goodput.at_restart(status, active(status, now)),
        **_next_attempt(status, snapshot.size.current, now),
        **update,
        "phase": Phase.RESTARTING,
        "conditions": said(status, sayings, job.generation, now),
        "restart_count": restarts.failures + restarts.disruptions,
        "workers": [],
    }
    expected = reason in {Reason.RESIZED, Reason.NODES_RELEASED}
    event = Event("Normal" if expected else "Warning", reason, told)
    return Plan(_observed(job, status.evolve(**changes)), events=[event])


def _next_attempt(status: TrainingJobStatus, workers: int, now: datetime) -> StatusChanges:
    """`workers`: how many the one before had."""
    return {
        "attempt": status.attempt + 1,
        "attempt_start_time": now,
        "running_time": None,
        "previous_size": workers,
        "group": None,
        "coordinated_stop": None,
        "stragglers": [],
    }


def _finish(job: JobView, phase: Phase, sayings: Sequence[Saying], event: Event, ready: str, now: datetime) -> Plan:
    status = job.status
    # Why it does not run any more is why it is over: `kubectl get -o wide` prints this reason.
    sayings = [
        no(C.RUNNING, event.reason, event.note),
        *over(status, [C.STRAGGLING, C.RESIZING], event.reason, event.note),
        *over(status, [C.RESTARTING], Reason.JOB_FINISHED, "the job has finished"),
        *sayings,
    ]
    update: StatusChanges = {
        "phase": phase,
        "completion_time": now,
        "active_seconds": int(active(status, now).total_seconds()),
        "goodput": goodput.settled(status, active(status, now)),
        "active_since": None,
        "conditions": said(status, sayings, job.generation, now),
        "ready": ready,
        "workers": [],
        "stragglers": [],
        "joining": None,
    }
    return Plan(_observed(job, status.evolve(**update)), events=[event])


def forget_rows(status: TrainingJobStatus) -> RestartBudget:
    """The restart budget of a job that somebody has changed: failures in a row are counted from zero."""
    return status.internal.restart_budget.evolve(at_same_step=None, out_of_memory=None)


def _observed(job: JobView, status: TrainingJobStatus) -> TrainingJobStatus:
    return status.evolve(observed_generation=job.generation)
