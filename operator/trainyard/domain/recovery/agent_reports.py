"""What the agents of workers say, laid over what is seen of their pods. Pure.

A failure that an agent has told, and a worker whose node does not answer any more, look from here on like those that the API server
tells of: one way of finding causes is enough.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from trainyard.api.agent_protocol import AgentState
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.actions import whole_seconds
from trainyard.domain.recovery.agent_injection import has_agent
from trainyard.domain.recovery.root_cause import is_consequence, summary
from trainyard.domain.recovery.suspect_nodes import AGENT_SILENT
from trainyard.domain.state.snapshot import Exit, PodIssue, PodView, Snapshot
from trainyard.domain.state.worker_state import State, state

VANISHED_AGENT_TIMEOUT = timedelta(seconds=8)
"""How long nothing is heard from a node before its worker is given up, where other workers are heard meanwhile. The kernel needs 6 to 11
seconds to find out before that, and not the same for each connection."""
ABSENT_AGENT_TIMEOUT = timedelta(seconds=12)
"""The same where the connection was closed, by a machine that was switched off in good order, say: if the container had ended, its node
would have told by then, and if the agent could call again, it would have."""
AGENT_READY_TIMEOUT = timedelta(seconds=60)
"""How long an agent may take to end its ranks: what the kernel holds back longer goes with the pod."""
MAX_CLOCK_SKEW = timedelta(seconds=3)
"""By so much clocks of a cluster may differ."""
AGENT_CONNECT_TIMEOUT = timedelta(seconds=6)
"""How long a new leader, or one that could not let all agents in, waits for those that have not called yet, before it takes them for absent, and anybody for that of a container that has just started."""


def merge_agent_reports(snapshot: Snapshot, now: datetime) -> Snapshot:
    """The snapshot with its pods as their agents know them."""
    if snapshot.coordinator_up_since is None:
        return snapshot
    return replace(snapshot, pods=[_merge(snapshot, pod, now) for pod in snapshot.pods])


def can_keep_pod(snapshot: Snapshot, pod: PodView) -> bool:
    """Whether the next attempt can begin in this pod: its agent is there and listens, or the pod was made to wait and has yet to start."""
    agent, status = snapshot.agents.get(pod.uid), snapshot.job.status
    if pod.disruption or pod.ended:
        return False
    if agent is None:
        return (
            status.created_in_attempt(pod.index) == status.attempt and status.awaiting_rendezvous and pod.issue is None
        )
    there = not agent.vanished and agent.state is not AgentState.ENDED
    return there and agent.attempt <= status.attempt and pod.running


def is_ready(snapshot: Snapshot, pod: PodView) -> bool:
    """Whether this worker can begin the current attempt."""
    agent = snapshot.agents.get(pod.uid)
    return (
        agent is not None
        and agent.connected
        and agent.state is AgentState.WAITING
        and agent.attempt == snapshot.job.status.attempt
    )


def connect_time_left(snapshot: Snapshot, now: datetime, *, leavers: bool = False) -> timedelta | None:
    """How much longer to wait for agents that have yet to call: with a new leader, or because their containers have only just started.

    None where there are none to come. `leavers`: for those too that are taken away.
    """
    if snapshot.coordinator_up_since is None or not has_agent(snapshot.job, brought=snapshot.agent):
        return None
    waits = [
        AGENT_CONNECT_TIMEOUT - (now - _expected_since(pod, snapshot.coordinator_up_since, now))
        for pod in snapshot.current
        if pod.running and (leavers or not pod.disruption) and pod.uid not in snapshot.agents
    ]
    return max((wait for wait in waits if wait > timedelta()), default=None)


def _expected_since(pod: PodView, coordinator_up_since: datetime, now: datetime) -> datetime:
    """Since when this worker's agent could have called."""
    began = pod.running_since
    # A node whose clock is ahead must not hold up a verdict for as long.
    return max(coordinator_up_since, began) if began and began - now <= MAX_CLOCK_SKEW else coordinator_up_since


def report_time_left(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """How much longer it takes until the last word on a worker that has left: that it is given up, or that it has ended well.

    None where there is none. Until then nobody knows who was the first.
    """
    waits = [
        _exit_time_left(snapshot, pod, now) or _silence_left(snapshot, pod, now)
        for pod in snapshot.current
        if not (pod.ended or pod.disruption or pod.exit)
    ]
    return min((wait for wait in waits if wait and wait > timedelta()), default=None)


def waits(snapshot: Snapshot, now: datetime) -> list[float]:
    """Seconds until a silence, or a worker that is not ready, needs a look."""
    waits = [left for pod in snapshot.pods if not pod.ended and (left := _silence_left(snapshot, pod, now))]
    waits += [left for pod in snapshot.current if (left := _connect_time_left(snapshot, pod, now))]
    begun = _rendezvous_start(snapshot)
    if begun and any(_was_kept(snapshot, pod) and not is_ready(snapshot, pod) for pod in snapshot.current):
        waits.append(AGENT_READY_TIMEOUT - (now - begun))
    return [whole_seconds(wait) for wait in waits if wait > timedelta()]


def is_lost(snapshot: Snapshot, pod: PodView, now: datetime) -> bool:
    """Whether nothing was heard of a worker for so long, while others were heard, that its ranks cannot be in anybody's way."""
    left = _silence_left(snapshot, pod, now)
    return left is not None and left <= timedelta()


def is_out_of_use(snapshot: Snapshot, pod: PodView, now: datetime) -> bool:
    """Whether no rank runs in a pod that is not used any more: nothing is heard of it, or the last word was that its container starts anew."""
    agent = snapshot.agents.get(pod.uid)
    return (agent is not None and agent.state is AgentState.RESTARTING) or is_lost(snapshot, pod, now)


def _silence_left(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """How much longer an agent that has left without a word may be away; None where there is none, or nobody else is heard either."""
    agent = snapshot.agents.get(pod.uid)
    if agent is None:
        return _first_contact_time_left(snapshot, pod, now)
    if (
        agent.left_at is None
        or agent.state is AgentState.ENDED
        or (agent.state is AgentState.RESTARTING and not agent.vanished)
    ):
        return None
    # All at once away is our own network: what counts begins when the first is back, and when all that call are let in.
    if snapshot.agents_connected_since is None or snapshot.coordinator_up_since is None:
        return None
    began = max(agent.left_at, snapshot.agents_connected_since, snapshot.coordinator_up_since)
    return (VANISHED_AGENT_TIMEOUT if agent.vanished else ABSENT_AGENT_TIMEOUT) - (now - began)


def _first_contact_time_left(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """The same of one that has not called since this process hears: with the node of the leader before, its own was lost perhaps.

    Others tell then that they have lost a peer. Where none does, nothing follows from it: it may not be able to call, and train.
    """
    connected_since, up_since = snapshot.agents_connected_since, snapshot.coordinator_up_since
    if (
        not pod.running
        or connected_since is None
        or up_since is None
        or not has_agent(snapshot.job, brought=snapshot.agent)
    ):
        return None
    ends = (agent.exit for each in snapshot.current if (agent := snapshot.agents.get(each.uid)) and agent.exit)
    lost = any(is_consequence(end) for end in ends) and snapshot.job.status.has(pod.index, pod.attempt)
    return ABSENT_AGENT_TIMEOUT - (now - max(connected_since, _expected_since(pod, up_since, now))) if lost else None


def _exit_time_left(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """How much longer the node of a worker that has done its work may take to tell."""
    agent = snapshot.agents.get(pod.uid)
    if agent is None or agent.state is not AgentState.ENDED or agent.reported_at is None:
        return None
    return ABSENT_AGENT_TIMEOUT - (now - agent.reported_at)


def _merge(snapshot: Snapshot, pod: PodView, now: datetime) -> PodView:
    """Return the pod as the first rule that applies sees it."""
    if not snapshot.job.status.has(pod.index, pod.attempt):
        return pod
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
    if state(pod) not in {State.SUCCEEDED, State.FAILED}:
        return None
    how = f": exit code {pod.exit.code}: {summary(pod.exit)}".removesuffix(": ") if pod.exit else ""
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
    if pod.ended:
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
    late = start is not None and now - start >= AGENT_READY_TIMEOUT and _was_kept(snapshot, pod)
    if not late or is_ready(snapshot, pod):
        return None
    container = restarts_container(snapshot.job.status, pod)
    if not container and (agent is None or state(pod) is not State.RUNNING):
        return None
    what = "its container did not restart" if container else "its processes did not exit"
    return _not_ready(pod, f"{what} within {AGENT_READY_TIMEOUT.seconds} seconds", now)


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
    """Whether the container of this worker starts anew before the current attempt begins."""
    return (
        status.awaiting_rendezvous
        and status.internal.group is not None
        and status.internal.group.restarting_container == pod.index
    )


def _connect_time_left(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """How much longer the agent of a worker that joins the others may take to call, once its container runs; None where it has, or need not."""
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
    """Whether it was there before this attempt. One that joins takes the time that its image and its node take."""
    return pod.attempt < snapshot.job.status.attempt


def _rendezvous_start(snapshot: Snapshot) -> datetime | None:
    """Since when the workers that kept their pods could have been ready."""
    status = snapshot.job.status
    if not status.awaiting_rendezvous or not status.internal.attempt_start_time or not snapshot.coordinator_up_since:
        return None
    return max(status.internal.attempt_start_time, snapshot.coordinator_up_since)
