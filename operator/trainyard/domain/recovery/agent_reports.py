"""What the agents of workers say, laid over what is seen of their pods. Pure.

A failure that an agent has told, and a worker whose node does not answer any more, look from here on like those that the API server
tells of: one way of finding causes is enough.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from trainyard.api.agent_protocol import AgentState
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.actions import whole_seconds
from trainyard.domain.recovery.agent_injection import accompanied
from trainyard.domain.recovery.root_cause import follows, summary
from trainyard.domain.recovery.suspect_nodes import AGENT_SILENT
from trainyard.domain.state.snapshot import PodIssue, PodView, Snapshot
from trainyard.domain.state.worker_state import State, state

SILENCE = timedelta(seconds=8)
"""How long nothing is heard from a node before its worker is given up, where other workers are heard meanwhile. The kernel needs 6 to 11
seconds to find out before that, and not the same for each connection."""
ABSENCE = timedelta(seconds=12)
"""The same where the connection was closed, by a machine that was switched off in good order, say: if the container had ended, its node
would have told by then, and if the agent could call again, it would have."""
STUCK = timedelta(seconds=60)
"""How long an agent may take to end its ranks: what the kernel holds back longer goes with the pod."""
AHEAD = timedelta(seconds=3)
"""By so much clocks of a cluster may differ."""
CALL_IN = timedelta(seconds=6)
"""How long a new leader, or one that could not let all agents in, waits for those that have not called yet, before it takes them for absent, and anybody for that of a container that has just started."""


def overlaid(snapshot: Snapshot, now: datetime) -> Snapshot:
    """The snapshot with its pods as their agents know them."""
    if snapshot.coordinator_up_since is None:
        return snapshot
    return replace(snapshot, pods=[_overlaid(snapshot, pod, now) for pod in snapshot.pods])


def stays(snapshot: Snapshot, pod: PodView) -> bool:
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


def ready(snapshot: Snapshot, pod: PodView) -> bool:
    """Whether this worker can begin the current attempt."""
    agent = snapshot.agents.get(pod.uid)
    return (
        agent is not None
        and agent.connected
        and agent.state is AgentState.WAITING
        and agent.attempt == snapshot.job.status.attempt
    )


def calling(snapshot: Snapshot, now: datetime, *, leavers: bool = False) -> timedelta | None:
    """How much longer to wait for agents that have yet to call: with a new leader, or because their containers have only just started.

    None where there are none to come. `leavers`: for those too that are taken away.
    """
    if snapshot.coordinator_up_since is None or not accompanied(snapshot.job, brought=snapshot.agent):
        return None
    waits = [
        CALL_IN - (now - _expected_since(pod, snapshot.coordinator_up_since, now))
        for pod in snapshot.current
        if pod.running and (leavers or not pod.disruption) and pod.uid not in snapshot.agents
    ]
    return max((wait for wait in waits if wait > timedelta()), default=None)


def _expected_since(pod: PodView, coordinator_up_since: datetime, now: datetime) -> datetime:
    """Since when this worker's agent could have called."""
    began = pod.running_since
    # A node whose clock is ahead must not hold up a verdict for as long.
    return max(coordinator_up_since, began) if began and began - now <= AHEAD else coordinator_up_since


def missing(snapshot: Snapshot, now: datetime) -> timedelta | None:
    """How much longer it takes until the last word on a worker that has left: that it is given up, or that it has ended well.

    None where there is none. Until then nobody knows who was the first.
    """
    waits = [
        _ending(snapshot, pod, now) or _left(snapshot, pod, now)
        for pod in snapshot.current
        if not (pod.ended or pod.disruption or pod.exit)
    ]
    return min((wait for wait in waits if wait and wait > timedelta()), default=None)


def deadlines(snapshot: Snapshot, now: datetime) -> list[float]:
    """Seconds until a silence, or a worker that is not ready, needs a look."""
    waits = [left for pod in snapshot.pods if not pod.ended and (left := _left(snapshot, pod, now))]
    waits += [left for pod in snapshot.current if (left := _unheard(snapshot, pod, now))]
    begun = _meeting_since(snapshot)
    if begun and any(_kept(snapshot, pod) and not ready(snapshot, pod) for pod in snapshot.current):
        waits.append(STUCK - (now - begun))
    return [whole_seconds(wait) for wait in waits if wait > timedelta()]


def gone(snapshot: Snapshot, pod: PodView, now: datetime) -> bool:
    """Whether nothing was heard of a worker for so long, while others were heard, that its ranks cannot be in anybody's way."""
    left = _left(snapshot, pod, now)
    return left is not None and left <= timedelta()


def out_of_the_way(snapshot: Snapshot, pod: PodView, now: datetime) -> bool:
    """Whether no rank runs in a pod that is not used any more: nothing is heard of it, or the last word was that its container starts anew."""
    agent = snapshot.agents.get(pod.uid)
    return (agent is not None and agent.state is AgentState.RESTARTING) or gone(snapshot, pod, now)


def _left(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """How much longer an agent that has left without a word may be away; None where there is none, or nobody else is heard either."""
    agent = snapshot.agents.get(pod.uid)
    if agent is None:
        return _never_heard(snapshot, pod, now)
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
    return (SILENCE if agent.vanished else ABSENCE) - (now - began)


def _never_heard(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """The same of one that has not called since this process hears: with the node of the leader before, its own was lost perhaps.

    Others tell then that they have lost a peer. Where none does, nothing follows from it: it may not be able to call, and train.
    """
    heard, hearing = snapshot.agents_connected_since, snapshot.coordinator_up_since
    if not pod.running or heard is None or hearing is None or not accompanied(snapshot.job, brought=snapshot.agent):
        return None
    ends = (agent.exit for each in snapshot.current if (agent := snapshot.agents.get(each.uid)) and agent.exit)
    lost = any(follows(end) for end in ends) and snapshot.job.status.has(pod.index, pod.attempt)
    return ABSENCE - (now - max(heard, _expected_since(pod, hearing, now))) if lost else None


def _ending(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """How much longer the node of a worker that has done its work may take to tell."""
    agent = snapshot.agents.get(pod.uid)
    if agent is None or agent.state is not AgentState.ENDED or agent.reported_at is None:
        return None
    return ABSENCE - (now - agent.reported_at)


def _overlaid(snapshot: Snapshot, pod: PodView, now: datetime) -> PodView:
    agent, status = snapshot.agents.get(pod.uid), snapshot.job.status
    if not status.has(pod.index, pod.attempt):
        return pod
    told = agent.exit if agent and agent.attempt == status.attempt and pod.exit is None else None
    if pod.disruption:
        # What it was taken away after is not forgotten with it.
        return replace(pod, exit=told) if told and pod.disrupted_at and told.time < pod.disrupted_at else pod
    if status.awaiting_rendezvous and _kept(snapshot, pod) and state(pod) in {State.SUCCEEDED, State.FAILED}:
        # It had done its work when the verdict fell that its pod stays, or ended with its old failure, since nobody told it to go on.
        how = f": exit code {pod.exit.code}: {summary(pod.exit)}".removesuffix(": ") if pod.exit else ""
        early = PodIssue("EndedBefore", f"it ended before this attempt began{how}")
        return replace(pod, exit=None, phase="Failed", disruption=early, disrupted_at=now)
    unheard = _unheard(snapshot, pod, now)
    if unheard is not None and unheard <= timedelta():
        deaf = PodIssue("AgentNotReady", f"its agent has not reached the operator within {STUCK.seconds} seconds")
        return replace(pod, disruption=deaf, disrupted_at=now)
    if pod.ended or told:
        return pod if pod.ended else replace(pod, exit=told)
    if gone(snapshot, pod, now):
        lost = PodIssue(AGENT_SILENT, "nothing is heard of it any more, while other workers are")
        return replace(pod, disruption=lost, disrupted_at=agent.left_at if agent else now)
    begun = _meeting_since(snapshot)
    late = begun is not None and now - begun >= STUCK and _kept(snapshot, pod)
    away = restarts(status, pod)
    if late and not ready(snapshot, pod) and (away or (agent is not None and state(pod) is State.RUNNING)):
        what = "its container did not start anew" if away else "its processes did not end"
        stuck = PodIssue("AgentNotReady", f"{what} within {STUCK.seconds} seconds")
        return replace(pod, disruption=stuck, disrupted_at=now)
    return pod


def restarts(status: TrainingJobStatus, pod: PodView) -> bool:
    """Whether the container of this worker starts anew before the current attempt begins."""
    return (
        status.awaiting_rendezvous
        and status.internal.group is not None
        and status.internal.group.restarting_container == pod.index
    )


def _unheard(snapshot: Snapshot, pod: PodView, now: datetime) -> timedelta | None:
    """How much longer the agent of a worker that joins the others may take to call, once its container runs; None where it has, or need not."""
    joins = (
        snapshot.job.status.awaiting_rendezvous
        and pod.running
        and not pod.disruption
        and pod.uid not in snapshot.agents
    )
    if not joins or pod.running_since is None or snapshot.coordinator_up_since is None or _kept(snapshot, pod):
        return None
    return STUCK - (now - _expected_since(pod, snapshot.coordinator_up_since, now))


def _kept(snapshot: Snapshot, pod: PodView) -> bool:
    """Whether it was there before this attempt. One that joins takes the time that its image and its node take."""
    return pod.attempt < snapshot.job.status.attempt


def _meeting_since(snapshot: Snapshot) -> datetime | None:
    """Since when the workers that kept their pods could have been ready."""
    status = snapshot.job.status
    if not status.awaiting_rendezvous or not status.internal.attempt_start_time or not snapshot.coordinator_up_since:
        return None
    return max(status.internal.attempt_start_time, snapshot.coordinator_up_since)
