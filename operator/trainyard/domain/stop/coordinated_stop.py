"""Coordinate the stop of all ranks after the same step, with a checkpoint, where there is time for it. Pure.

Each agent pauses its ranks after their current step and reports that step. The operator chooses the step after the furthest one:
no rank is beyond it, and slower ranks reach it because the others wait for them.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import MAX_REASON_LENGTH, CoordinatedStop
from trainyard.api.reasons import Reason
from trainyard.api.recovery import SAVED_CODE
from trainyard.domain.decisions import Event, Outcome, whole_seconds
from trainyard.domain.recovery.agent_reports import connect_time_left, is_lost
from trainyard.domain.state.roles import member
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import AgentView, PodView, State
from trainyard.domain.wording import counted

RECONNECT_TIMEOUT = timedelta(seconds=3)
"""How long an agent may take to connect again."""
MIN_STOP_TIME = timedelta(seconds=2)
"""The least time in which a coordinated stop can succeed."""
JOIN_TIMEOUT = timedelta(seconds=3)
"""How long agents may take to report that their ranks take part: they look every 0.25 seconds whether all have called `must_stop`."""
STEP_REPORT_TIMEOUT = timedelta(seconds=10)
"""How long agents may take to report their step. Ranks wait twice as long, so that the chosen step reaches them in time."""


def plan_coordinated_stop(snapshot: Snapshot, now: datetime) -> Outcome | None:
    """Return the outcome of the coordinated stop of this attempt; None where there is none, or none to wait for any more."""
    stop = snapshot.job.status.stopping
    if stop and stop.time > now:
        # A clock was set back, or the status was edited by hand: the stop must not wait for that time.
        return _store(CoordinatedStop(attempt=stop.attempt, time=now, reason=stop.reason, step=stop.step))
    if (stop or _stop_reason(snapshot)) and (
        wait := connect_time_left(snapshot, now) or _reconnect_time_left(snapshot, now)
    ):
        return Outcome(requeue_after=whole_seconds(wait))
    if stop is None:
        return _request(snapshot, now)
    return _choose_step(snapshot, stop, now) if stop.step is None else _wait_for_exits(snapshot, stop, now)


def _request(snapshot: Snapshot, now: datetime) -> Outcome | None:
    why, agents = _stop_reason(snapshot), _group(snapshot)
    if why is None or agents is None or not any(agent.leave for agent in agents):
        return None
    stop = CoordinatedStop(attempt=snapshot.job.status.attempt, time=now, reason=why[:MAX_REASON_LENGTH])
    left = _time_left(snapshot, stop, now)
    return _store(stop, wait=min(STEP_REPORT_TIMEOUT, left)) if left >= MIN_STOP_TIME else None


def _choose_step(snapshot: Snapshot, stop: CoordinatedStop, now: datetime) -> Outcome | None:
    if _stop_reason(snapshot) is None:
        return _store(None)
    agents = _group(snapshot)
    joined = agents is not None and all(agent.leave for agent in agents)
    limit = STEP_REPORT_TIMEOUT if joined else JOIN_TIMEOUT
    left = min(limit - (now - stop.time), _time_left(snapshot, stop, now))
    if agents is None or left <= timedelta():
        return None
    passed = [agent.leave.passed for agent in agents if agent.leave and agent.leave.asked]
    if len(passed) < len(agents):
        return Outcome(requeue_after=whole_seconds(left))
    furthest = max((step for step in passed if step is not None), default=None)
    if furthest is None or None in passed:
        return None
    step = furthest + 1
    event = Event("Normal", Reason.COORDINATED_STOP, f"{stop.reason}: all ranks stop after step {step}")
    return _store(CoordinatedStop(attempt=stop.attempt, time=stop.time, reason=stop.reason, step=step), event)


def _wait_for_exits(snapshot: Snapshot, stop: CoordinatedStop, now: datetime) -> Outcome | None:
    left, running = _time_left(snapshot, stop, now), _running_agents(snapshot)
    if (
        not running
        or left <= timedelta()
        or any(agent.leave is None or agent.leave.passed is None for agent in running)
    ):
        return None
    lost = any(is_lost(snapshot, pod, now) for pod in snapshot.current if not pod.has_stopped)
    return None if lost or _failed(snapshot) else Outcome(requeue_after=whole_seconds(left))


def _running_agents(snapshot: Snapshot) -> list[AgentView]:
    """Return the connected agents whose ranks run."""
    agents = [agent for _, agent in _agents(snapshot) if agent]
    return [agent for agent in agents if agent.connected and agent.state is AgentState.RUNNING]


def _failed(snapshot: Snapshot) -> bool:
    """Return whether a worker has exited in another way than by success or for the stop."""
    ends = [end.code for pod, agent in _agents(snapshot) if (end := pod.exit or (agent and agent.exit))]
    return not {0, SAVED_CODE}.issuperset(ends)


def _time_left(snapshot: Snapshot, stop: CoordinatedStop, now: datetime) -> timedelta:
    """Return how much time the ranks have left: until the first grace period ends, else until the stop timeout."""
    going = [
        pod.deletion_time - now for pod in snapshot.current if pod.deletion_time and pod.state is not State.SUCCEEDED
    ]
    return min(going, default=timedelta(seconds=_usual_seconds(snapshot)) - (now - stop.time))


def _usual_seconds(snapshot: Snapshot) -> int:
    """Return the seconds that the ranks have where no pod is being deleted."""
    spec = snapshot.job.spec
    resized = spec.elastic.stop_timeout_seconds if spec.elastic and snapshot.size.resized_from else None
    return resized or spec.grace_seconds


def _stop_reason(snapshot: Snapshot) -> str | None:
    """Return why the ranks have to stop; None where they do not."""
    spec = snapshot.job.spec
    if spec.lifecycle.suspend:
        return "lifecycle.suspend is set"
    if not snapshot.job.status.at_rest and (hold := snapshot.hold):
        return f"the queue takes its quota back: {hold.message}"
    if snapshot.outdated:
        return "the job was suspended, changed and resumed"
    if snapshot.size.resized_from:
        return (
            f"the group is resized to {counted(snapshot.size.desired, 'worker')}"
            if spec.elastic
            else f"replicas was changed to {snapshot.size.desired}"
        )
    for pod, agent in _agents(snapshot):
        if pod.disruption and not pod.has_stopped:
            return f"{member(pod.index)} (pod {pod.name}) is being disrupted: {pod.disruption.reason}"
        if agent and agent.leave and agent.leave.leaving:
            return f"{member(pod.index)} (pod {pod.name}) is being terminated"
    return None


def _reconnect_time_left(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """Return how much longer to wait for agents that have just disconnected, as they do before they report a change; None: for none."""
    waits = [
        RECONNECT_TIMEOUT - (now - agent.left_at)
        for pod, agent in _agents(snapshot)
        if agent and agent.leave and agent.left_at and not (agent.vanished or pod.has_stopped)
    ]
    # `now` has whole seconds. A later time comes from a clock that was set back since.
    return max((wait for wait in waits if timedelta() < wait <= RECONNECT_TIMEOUT + timedelta(seconds=1)), default=None)


def _group(snapshot: Snapshot) -> list[AgentView] | None:
    """Return the agents of all workers where the ranks of each run; else None."""
    attempt = snapshot.job.status.attempt
    agents = [agent for agent in _running_agents(snapshot) if agent.attempt == attempt]
    present = {pod.index for pod in snapshot.current}
    whole = present.issuperset(snapshot.job.members(snapshot.size.current)) and len(agents) == len(snapshot.current)
    return agents if whole else None


def _agents(snapshot: Snapshot) -> Iterator[tuple[PodView, AgentView | None]]:
    return ((pod, snapshot.agents.get(pod.uid)) for pod in snapshot.current)


def _store(stop: CoordinatedStop | None, *events: Event, wait: timedelta | None = None) -> Outcome:
    return Outcome({"coordinated_stop": stop}, events=events, requeue_after=whole_seconds(wait) if wait else None)
