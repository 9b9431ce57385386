"""Merge the reports of the workers' agents into the views of their pods. Pure.

A failure that an agent reports, and a worker whose node is unreachable, then look like those that the API server reports.
So one search for the root cause is enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainyard.api.agent_protocol import AgentState
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.decisions import whole_seconds
from trainyard.domain.recovery.suspect_nodes import AGENT_SILENT
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import PodIssue, PodView, State

VANISHED_AGENT_TIMEOUT = timedelta(seconds=8)
"""How long a node may be unreachable before its worker counts as lost, while other agents are connected. The kernel needs 6 to
11 seconds before that to close the connection, and not the same time for each."""
ABSENT_AGENT_TIMEOUT = timedelta(seconds=12)
"""How long an agent may be away after its connection was closed, for example by an orderly shutdown of its machine. By then
the node would have reported an exit, and an agent that runs would have connected again."""
AGENT_READY_TIMEOUT = timedelta(seconds=60)
"""How long an agent may take to connect, or to stop its ranks. The operator replaces the pod of one that takes longer."""
KILL_TIME = timedelta(seconds=30)
"""How long an agent may take to kill its ranks once their time to save is over. Freeing the memory of a GPU takes time."""
MAX_CLOCK_SKEW = timedelta(seconds=3)
"""The most by which clocks of a cluster differ."""
AGENT_CONNECT_TIMEOUT = timedelta(seconds=6)
"""How long the leader waits for an agent to connect. The time starts when it became the leader, last refused
connections, or the agent's container started. After that the agent counts as absent."""


@dataclass(frozen=True, slots=True)
class MergedReports:
    """The snapshot with the agents' reports in its pods, and what is still to be waited for."""

    snapshot: Snapshot
    undecided: timedelta | None = None
    """How much longer agents may take to connect, or nodes to report an outcome: until then no root cause is known. None: it is."""
    waits: Sequence[float] = ()
    """The seconds until each timeout of an agent that is silent or not ready."""


def merge_agent_reports(snapshot: Snapshot, now: datetime) -> MergedReports:
    """Return the snapshot with the agents' reports merged into its pods."""
    if snapshot.coordinator_up_since is None:
        return MergedReports(snapshot)
    merged = replace(snapshot, pods=[_merge(snapshot, pod, now) for pod in snapshot.pods])
    # Wait for missing agents: a lost-peer error may be caused by a silent or finished worker.
    undecided = connect_time_left(merged, now) or _outcome_time_left(merged, now)
    return MergedReports(merged, undecided, _timeouts(merged, now))


def connect_time_left(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """Return how much longer to wait for agents to connect: to a new leader, or after the start of their containers.

    None where no agent is expected.
    """
    if snapshot.coordinator_up_since is None or not snapshot.expects_agents:
        return None
    waits = [
        AGENT_CONNECT_TIMEOUT - (now - _expected_since(pod, snapshot.coordinator_up_since, now))
        for pod in snapshot.current
        if pod.running and pod.uid not in snapshot.agents
    ]
    return max((wait for wait in waits if wait > timedelta()), default=None)


def _expected_since(pod: PodView, coordinator_up_since: datetime, now: datetime) -> datetime:
    """Return since when this worker's agent could have connected."""
    began = pod.running_since
    # A node whose clock is ahead must not delay a decision by the difference.
    return max(coordinator_up_since, began) if began and began - now <= MAX_CLOCK_SKEW else coordinator_up_since


def _outcome_time_left(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """Return how much longer to wait for the outcome of a worker whose agent has left: lost, or exited with code 0.

    None where no outcome is pending. Until then the root cause is not known.
    """
    waits = [
        _exit_time_left(snapshot, pod, now) or _silence_left(snapshot, pod, now)
        for pod in snapshot.current
        if not (pod.ended or pod.disruption or pod.exit)
    ]
    return min((wait for wait in waits if wait and wait > timedelta()), default=None)


def _timeouts(snapshot: Snapshot, now: datetime) -> list[float]:
    """Return the seconds until each timeout of an agent that is silent or not ready."""
    waits = [left for pod in snapshot.pods if not pod.ended and (left := _silence_left(snapshot, pod, now))]
    waits += [left for pod in snapshot.current if (left := _connect_time_left(snapshot, pod, now))]
    begun = _rendezvous_start(snapshot)
    if begun and any(_was_kept(snapshot, pod) and pod.index not in snapshot.ready_workers for pod in snapshot.current):
        waits.append(_restart_timeout(snapshot) - (now - begun))
    return [whole_seconds(wait) for wait in waits if wait > timedelta()]


def is_lost(snapshot: Snapshot, pod: PodView, now: datetime) -> bool:
    """Return whether the agent was silent for too long while others were connected: its ranks cannot disturb a new attempt."""
    left = _silence_left(snapshot, pod, now)
    return left is not None and left <= timedelta()


def _is_idle(snapshot: Snapshot, pod: PodView, now: datetime) -> bool:
    """Return whether no rank runs in a pod of another attempt: it is lost, or its agent reported a container restart."""
    agent = snapshot.agents.get(pod.uid)
    return (agent is not None and agent.state is AgentState.RESTARTING) or is_lost(snapshot, pod, now)


def _silence_left(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """Return how much longer an agent may be silent; None where it is not, or where no other agent is connected either."""
    agent = snapshot.agents.get(pod.uid)
    if agent is None:
        return _first_contact_time_left(snapshot, pod, now)
    if (
        agent.left_at is None
        or agent.state is AgentState.ENDED
        # Its node may restart the container after minutes.
        or (snapshot.job.is_lone(pod.index) and not agent.vanished)
        or (agent.state is AgentState.RESTARTING and not agent.vanished)
    ):
        return None
    # If all agents are away, our own network failed: the time counts once one is back and no connection is refused.
    if snapshot.agents_connected_since is None or snapshot.coordinator_up_since is None:
        return None
    began = max(agent.left_at, snapshot.agents_connected_since, snapshot.coordinator_up_since)
    return (VANISHED_AGENT_TIMEOUT if agent.vanished else ABSENT_AGENT_TIMEOUT) - (now - began)


def _first_contact_time_left(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """Return how much longer an agent may take to connect to this leader for the first time, if a worker reports a lost peer.

    Its node may have failed together with that of the previous leader. Without such a report nothing is concluded: the worker
    may train although its agent cannot connect.
    """
    connected_since, up_since = snapshot.agents_connected_since, snapshot.coordinator_up_since
    if not pod.running or connected_since is None or up_since is None or not snapshot.expects_agents:
        return None
    ends = (agent.exit for each in snapshot.current if (agent := snapshot.agents.get(each.uid)) and agent.exit)
    lost = any(end.is_consequence for end in ends) and snapshot.job.status.has(pod.index, pod.attempt, pod.recreated)
    return ABSENT_AGENT_TIMEOUT - (now - max(connected_since, _expected_since(pod, up_since, now))) if lost else None


def _exit_time_left(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """Return how much longer the node may take to report the exit of a worker whose agent reported completion."""
    agent = snapshot.agents.get(pod.uid)
    if agent is None or agent.state is not AgentState.ENDED or agent.reported_at is None:
        return None
    return ABSENT_AGENT_TIMEOUT - (now - agent.reported_at)


def _merge(snapshot: Snapshot, pod: PodView, now: datetime) -> PodView:
    """Return the pod as the first rule that applies sees it."""
    if not snapshot.job.status.has(pod.index, pod.attempt, pod.recreated):
        return replace(pod, idle=True) if _is_idle(snapshot, pod, now) else pod
    return next((merged for rule in RULES if (merged := rule(snapshot, pod, now))), pod)


def _disrupted(snapshot: Snapshot, pod: PodView, _: datetime) -> PodView | None:
    """A pod that is being taken away keeps a failure that its agent reported before."""
    if not pod.disruption:
        return None
    reported = _reported_exit(snapshot, pod)
    return replace(pod, exit=reported) if reported and pod.disrupted_at and reported.time < pod.disrupted_at else pod


def _exited_before_attempt(snapshot: Snapshot, pod: PodView, now: datetime) -> PodView | None:
    """A kept pod exited before its agent received the new attempt: it had finished, or exited with its old failure."""
    if not (snapshot.job.status.awaiting_rendezvous and _was_kept(snapshot, pod)):
        return None
    if pod.state not in {State.SUCCEEDED, State.FAILED}:
        return None
    how = f": exit code {pod.exit.code}: {pod.exit.summary}".removesuffix(": ") if pod.exit else ""
    early = PodIssue("EndedBefore", f"it exited before this attempt started{how}")
    return replace(pod, exit=None, phase="Failed", disruption=early, disrupted_at=now)


def _never_connected(snapshot: Snapshot, pod: PodView, now: datetime) -> PodView | None:
    """The agent of a new worker did not connect in time."""
    left = _connect_time_left(snapshot, pod, now)
    if left is None or left > timedelta():
        return None
    return _not_ready(pod, f"its agent did not connect within {AGENT_READY_TIMEOUT.seconds} seconds", now)


def _exited(snapshot: Snapshot, pod: PodView, _: datetime) -> PodView | None:
    """The exit that the node has reported, or else the one that the agent has."""
    if pod.has_stopped:
        return pod
    reported = _reported_exit(snapshot, pod)
    return replace(pod, exit=reported) if reported else None


def _silent(snapshot: Snapshot, pod: PodView, now: datetime) -> PodView | None:
    """The agent has been silent for too long while others are connected."""
    if not is_lost(snapshot, pod, now):
        return None
    agent = snapshot.agents.get(pod.uid)
    silent = PodIssue(AGENT_SILENT, "its agent is silent while other agents are connected")
    return replace(pod, disruption=silent, disrupted_at=agent.left_at if agent else now)


def _restarts_too_slowly(snapshot: Snapshot, pod: PodView, now: datetime) -> PodView | None:
    """The processes or the container of a kept pod did not restart in time."""
    start, agent = _rendezvous_start(snapshot), snapshot.agents.get(pod.uid)
    limit = _restart_timeout(snapshot)
    late = start is not None and now - start >= limit and _was_kept(snapshot, pod)
    if not late or pod.index in snapshot.ready_workers:
        return None
    container = restarts_container(snapshot.job.status, pod)
    if not container and (agent is None or pod.state is not State.RUNNING):
        return None
    what = "its container did not restart" if container else "its processes did not exit"
    return _not_ready(pod, f"{what} within {limit.total_seconds():.0f} seconds", now)


RULES: tuple[Callable[[Snapshot, PodView, datetime], PodView | None], ...] = (
    _disrupted,
    _exited_before_attempt,
    _never_connected,
    _exited,
    _silent,
    _restarts_too_slowly,
)
"""The first rule that returns a pod decides."""


def _reported_exit(snapshot: Snapshot, pod: PodView) -> Exit | None:
    """Return the exit that the agent reported in this attempt, where the node has not reported one."""
    agent = snapshot.agents.get(pod.uid)
    return agent.exit if agent and agent.attempt == snapshot.job.status.attempt and pod.exit is None else None


def _not_ready(pod: PodView, message: str, now: datetime) -> PodView:
    return replace(pod, disruption=PodIssue("AgentNotReady", message), disrupted_at=now)


def restarts_container(status: TrainingJobStatus, pod: PodView) -> bool:
    """Return whether the container of this worker restarts before the current attempt starts."""
    return (
        status.awaiting_rendezvous
        and status.internal.group is not None
        and status.internal.group.restarting_container == pod.index
    )


def _connect_time_left(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """Return how much longer the agent of a new worker may take to connect once its container runs; None: it is connected or not needed."""
    joins = (
        snapshot.job.status.awaiting_rendezvous
        and pod.running
        and not pod.disruption
        and pod.uid not in snapshot.agents
    )
    if not joins or pod.running_since is None or snapshot.coordinator_up_since is None or _was_kept(snapshot, pod):
        return None
    return AGENT_READY_TIMEOUT - (now - _expected_since(pod, snapshot.coordinator_up_since, now))


def _was_kept(snapshot: Snapshot, pod: PodView) -> bool:
    """Return whether the pod was created before this attempt. A new one may take as long as its image and its node need."""
    return pod.attempt < snapshot.job.status.attempt


def _restart_timeout(snapshot: Snapshot) -> timedelta:
    """Return how long the agent of a kept pod may take until nothing of the attempt before runs there any more."""
    spec = snapshot.job.spec
    grace = spec.recovery.restart_grace_seconds
    saving = timedelta(seconds=spec.grace_seconds if grace is None else grace)
    return max(AGENT_READY_TIMEOUT, saving + KILL_TIME)


def _rendezvous_start(snapshot: Snapshot) -> datetime | None:
    """Return since when the workers that kept their pods could have been ready."""
    status = snapshot.job.status
    if not status.awaiting_rendezvous or not status.internal.attempt_start_time or not snapshot.coordinator_up_since:
        return None
    return max(status.internal.attempt_start_time, snapshot.coordinator_up_since)
