"""An end on which all ranks agree, where there is time for one: they stop after the same step, with a checkpoint. Pure.

Each agent has its ranks wait after the step that they are at, and tells which one they have passed. The step after the furthest is the
last: nobody is beyond it, and those that lag behind get there, for the others wait for them.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import MAX_REASON_LENGTH, CoordinatedStop
from trainyard.api.reasons import Reason
from trainyard.api.recovery import SAVED_CODE
from trainyard.domain.actions import Event, Plan, whole_seconds
from trainyard.domain.recovery.agent_reports import connect_time_left, is_lost
from trainyard.domain.state.snapshot import AgentView, PodView, Snapshot
from trainyard.domain.state.worker_state import all_present
from trainyard.domain.wording import counted

RECONNECT_TIMEOUT = timedelta(seconds=3)
"""How long an agent may take to call again."""
MIN_STOP_TIME = timedelta(seconds=2)
"""Who has less time than that gets to no common end."""
STEP_REPORT_TIMEOUT = timedelta(seconds=10)
"""How long agents get to answer. Ranks wait for twice as long: whatever step is named, it reaches them in time."""


def plan_coordinated_stop(snapshot: Snapshot, now: datetime) -> Plan | None:
    """What to do before a verdict on this attempt; None where there is nothing, or nothing any more, to wait for."""
    stop = snapshot.job.status.stopping
    if stop and stop.time > now:
        # By a clock that was set back since, or by hand: nothing is waited for that long.
        return _store(snapshot, stop.evolve(time=now))
    if (stop or _stop_reason(snapshot)) and (
        wait := connect_time_left(snapshot, now, leavers=True) or _reconnect_time_left(snapshot, now)
    ):
        return Plan(snapshot.job.status, requeue_after=whole_seconds(wait))
    if stop is None:
        return _request(snapshot, now)
    return _choose_step(snapshot, stop, now) if stop.step is None else _wait_for_exits(snapshot, stop, now)


def _request(snapshot: Snapshot, now: datetime) -> Plan | None:
    why = _stop_reason(snapshot)
    if why is None or _participants(snapshot) is None:
        return None
    stop = CoordinatedStop(attempt=snapshot.job.status.attempt, time=now, reason=why[:MAX_REASON_LENGTH])
    left = _time_left(snapshot, stop, now)
    return _store(snapshot, stop, wait=min(STEP_REPORT_TIMEOUT, left)) if left >= MIN_STOP_TIME else None


def _choose_step(snapshot: Snapshot, stop: CoordinatedStop, now: datetime) -> Plan | None:
    if _stop_reason(snapshot) is None:
        return _store(snapshot, None)
    agents, left = (
        _participants(snapshot),
        min(STEP_REPORT_TIMEOUT - (now - stop.time), _time_left(snapshot, stop, now)),
    )
    if agents is None or left <= timedelta():
        return None
    passed = [agent.leave.passed for agent in agents if agent.leave and agent.leave.asked]
    if len(passed) < len(agents):
        return Plan(snapshot.job.status, requeue_after=whole_seconds(left))
    furthest = max((step for step in passed if step is not None), default=None)
    if furthest is None or None in passed:
        return None
    step = furthest + 1
    event = Event("Normal", Reason.COORDINATED_STOP, f"{stop.reason}: all ranks stop after step {step}")
    return _store(snapshot, stop.evolve(step=step), event)


def _wait_for_exits(snapshot: Snapshot, stop: CoordinatedStop, now: datetime) -> Plan | None:
    left = _time_left(snapshot, stop, now)
    running = [
        agent for _, agent in _agents(snapshot) if agent and agent.connected and agent.state is AgentState.RUNNING
    ]
    late = any(agent.leave is None or agent.leave.passed is None for agent in running)
    ends = [end.code for pod, agent in _agents(snapshot) if (end := pod.exit or (agent and agent.exit))]
    lost = any(is_lost(snapshot, pod, now) for pod in snapshot.current if not pod.ended)
    if not running or late or lost or left <= timedelta() or not {0, SAVED_CODE}.issuperset(ends):
        return None
    return Plan(snapshot.job.status, requeue_after=whole_seconds(left))


def _time_left(snapshot: Snapshot, stop: CoordinatedStop, now: datetime) -> timedelta:
    """How much longer the ranks have: as long as the first pod that has to go."""
    going = [pod.deletion_time - now for pod in snapshot.current if pod.deletion_time]
    return min(going, default=timedelta(seconds=_usual_seconds(snapshot)) - (now - stop.time))


def _usual_seconds(snapshot: Snapshot) -> int:
    """Seconds that the ranks have where no pod has to go."""
    spec = snapshot.job.spec
    resized = spec.elastic.stop_timeout_seconds if spec.elastic and snapshot.size.resized_from else None
    return resized or spec.grace_seconds


def _stop_reason(snapshot: Snapshot) -> str | None:
    """Why the ranks are to stop; None where nothing says so."""
    spec = snapshot.job.spec
    if spec.lifecycle.suspend:
        return "lifecycle.suspend is set"
    if snapshot.size.resized_from:
        return (
            f"the group gets {counted(snapshot.size.desired, 'worker')}"
            if spec.elastic
            else f"replicas was changed to {snapshot.size.desired}"
        )
    for pod, agent in _agents(snapshot):
        if pod.disruption and not pod.ended:
            return f"worker {pod.index} (pod {pod.name}) is being disrupted: {pod.disruption.reason}"
        if agent and agent.leave and agent.leave.leaving:
            return f"worker {pod.index} (pod {pod.name}) was asked to end"
    return None


def _reconnect_time_left(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """How much longer to wait for agents that have hung up a moment ago, as they do to tell what is new; None where there are none."""
    waits = [
        RECONNECT_TIMEOUT - (now - agent.left_at)
        for pod, agent in _agents(snapshot)
        if agent and agent.leave and agent.left_at and not (agent.vanished or pod.ended)
    ]
    # `now` has whole seconds. What was still later by the clock of then was before it was set back.
    return max((wait for wait in waits if timedelta() < wait <= RECONNECT_TIMEOUT + timedelta(seconds=1)), default=None)


def _participants(snapshot: Snapshot) -> list[AgentView] | None:
    """The agents of all workers, where the ranks of each run and can wait for each other."""
    attempt = snapshot.job.status.attempt
    agents = [
        agent
        for _, agent in _agents(snapshot)
        if agent and agent.connected and agent.leave and (agent.attempt, agent.state) == (attempt, AgentState.RUNNING)
    ]
    whole = all_present(snapshot.current, snapshot.size.current) and len(agents) == len(snapshot.current)
    return agents if whole else None


def _agents(snapshot: Snapshot) -> Iterator[tuple[PodView, AgentView | None]]:
    return ((pod, snapshot.agents.get(pod.uid)) for pod in snapshot.current)


def _store(snapshot: Snapshot, stop: CoordinatedStop | None, *events: Event, wait: timedelta | None = None) -> Plan:
    status = snapshot.job.status.evolve(coordinated_stop=stop)
    return Plan(status, events=[*events], requeue_after=whole_seconds(wait) if wait else None)
