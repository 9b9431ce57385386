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
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.actions import Event, Plan, whole_seconds
from trainyard.domain.recovery.agent_reports import calling, gone
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.snapshot import AgentView, PodView, Snapshot
from trainyard.domain.state.worker_state import all_present
from trainyard.domain.wording import counted

CALL_AGAIN = timedelta(seconds=3)
"""How long an agent may take to call again."""
LEAST = timedelta(seconds=2)
"""Who has less time than that gets to no common end."""
AGREE = timedelta(seconds=10)
"""How long agents get to answer. Ranks wait for twice as long: whatever step is named, it reaches them in time."""


def hold(snapshot: Snapshot, now: datetime) -> Plan | None:
    """What to do before a verdict on this attempt; None where there is nothing, or nothing any more, to wait for."""
    stop = snapshot.job.status.stopping
    if stop and stop.time > now:
        # By a clock that was set back since, or by hand: nothing is waited for that long.
        return _set(snapshot, stop.evolve(time=now))
    if (stop or _occasion(snapshot)) and (
        wait := calling(snapshot, now, leavers=True) or _between_calls(snapshot, now)
    ):
        return Plan(snapshot.job.status, requeue_after=whole_seconds(wait))
    if stop is None:
        return _ask(snapshot, now)
    return _agree(snapshot, stop, now) if stop.step is None else _await(snapshot, stop, now)


def ordered(status: TrainingJobStatus, cause: Cause) -> bool:
    """Whether a worker has ended as it was told to. What rules say of such an exit code is meant for those that do it of themselves."""
    stop, end = status.stopping, cause.pod.exit if cause.pod else None
    return stop is not None and stop.step is not None and cause.failed and end is not None and end.code == SAVED_CODE


def told(status: TrainingJobStatus) -> str:
    """What is to be added to the story of the attempt's end."""
    stop = status.stopping
    return "" if stop is None or stop.step is None else f"; all ranks were told to stop after step {stop.step}"


def _ask(snapshot: Snapshot, now: datetime) -> Plan | None:
    why = _occasion(snapshot)
    if why is None or _taking_part(snapshot) is None:
        return None
    stop = CoordinatedStop(attempt=snapshot.job.status.attempt, time=now, reason=why[:MAX_REASON_LENGTH])
    left = _left(snapshot, stop, now)
    return _set(snapshot, stop, wait=min(AGREE, left)) if left >= LEAST else None


def _agree(snapshot: Snapshot, stop: CoordinatedStop, now: datetime) -> Plan | None:
    if _occasion(snapshot) is None:
        return _set(snapshot, None)
    agents, left = _taking_part(snapshot), min(AGREE - (now - stop.time), _left(snapshot, stop, now))
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
    return _set(snapshot, stop.evolve(step=step), event)


def _await(snapshot: Snapshot, stop: CoordinatedStop, now: datetime) -> Plan | None:
    left = _left(snapshot, stop, now)
    running = [
        agent for _, agent in _agents(snapshot) if agent and agent.connected and agent.state is AgentState.RUNNING
    ]
    late = any(agent.leave is None or agent.leave.passed is None for agent in running)
    ends = [end.code for pod, agent in _agents(snapshot) if (end := pod.exit or (agent and agent.exit))]
    lost = any(gone(snapshot, pod, now) for pod in snapshot.current if not pod.ended)
    if not running or late or lost or left <= timedelta() or not {0, SAVED_CODE}.issuperset(ends):
        return None
    return Plan(snapshot.job.status, requeue_after=whole_seconds(left))


def _left(snapshot: Snapshot, stop: CoordinatedStop, now: datetime) -> timedelta:
    """How much longer the ranks have: as long as the first pod that has to go."""
    going = [pod.deletion_time - now for pod in snapshot.current if pod.deletion_time]
    return min(going, default=timedelta(seconds=_usual(snapshot)) - (now - stop.time))


def _usual(snapshot: Snapshot) -> int:
    """Seconds that the ranks have where no pod has to go."""
    spec = snapshot.job.spec
    resized = spec.elastic.stop_timeout_seconds if spec.elastic and snapshot.size.resized_from else None
    return resized or spec.grace_seconds


def _occasion(snapshot: Snapshot) -> str | None:
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
            return f"worker {pod.index} (pod {pod.name}) is taken away: {pod.disruption.reason}"
        if agent and agent.leave and agent.leave.leaving:
            return f"worker {pod.index} (pod {pod.name}) was asked to end"
    return None


def _between_calls(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """How much longer to wait for agents that have hung up a moment ago, as they do to tell what is new; None where there are none."""
    waits = [
        CALL_AGAIN - (now - agent.left_at)
        for pod, agent in _agents(snapshot)
        if agent and agent.leave and agent.left_at and not (agent.vanished or pod.ended)
    ]
    # `now` has whole seconds. What was still later by the clock of then was before it was set back.
    return max((wait for wait in waits if timedelta() < wait <= CALL_AGAIN + timedelta(seconds=1)), default=None)


def _taking_part(snapshot: Snapshot) -> list[AgentView] | None:
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


def _set(snapshot: Snapshot, stop: CoordinatedStop | None, *events: Event, wait: timedelta | None = None) -> Plan:
    status = snapshot.job.status.evolve(coordinated_stop=stop)
    return Plan(status, events=[*events], requeue_after=whole_seconds(wait) if wait else None)
