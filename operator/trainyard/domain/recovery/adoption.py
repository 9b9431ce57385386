"""Find the attempt of the workers after the stored status was lost, for example by a restore. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import MAX_REASON_LENGTH, MAX_RECREATED, Group, Recreated
from trainyard.api.reasons import Reason
from trainyard.domain.decisions import Adopt, Event, Outcome
from trainyard.domain.recovery.restart_scope import made_of
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodView

MAX_PLAUSIBLE_ATTEMPT = 1_000_000_000
"""The operator ignores pods and agents of later attempts: no job has so many, so that it did not create them."""
MAX_PLAUSIBLE_RECREATIONS = 1_000_000
"""The same for the number in the name of a pod that was created again."""


def adoption(snapshot: Snapshot) -> Adopt | Outcome | None:
    """Return the adoption of what the pods and agents know better than the stored status; None where they do not."""
    return _lost_attempt(snapshot) or _lost_recreations(snapshot)


def _lost_attempt(snapshot: Snapshot) -> Adopt | None:
    """Return the adoption of the newest attempt of a pod, or of all agents, where it is later than the stored one."""
    if any(pod.attempt > snapshot.job.status.attempt for pod in snapshot.pods):
        snapshot = replace(snapshot, pods=_without_forged(snapshot))
    attempts = [*(pod.attempt for pod in snapshot.pods), _attempt_of_all_agents(snapshot)]
    newest = max((attempt for attempt in attempts if attempt < MAX_PLAUSIBLE_ATTEMPT), default=0)
    if newest <= snapshot.job.status.attempt:
        return None
    pods = _newest_pods(snapshot, newest)
    group = _group_of(pods, newest, snapshot.size.desired)
    agents = [snapshot.agents.get(pod.uid) for pod in pods]
    # Agents that wait beside others that run may be those of joining workers. Then the rendezvous stays closed.
    mixed = {agent.state for agent in agents if agent} >= {AgentState.RUNNING, AgentState.WAITING}
    first = next((pod.ip for pod in pods if pod.index == 0), "")
    # Otherwise the workers run, or were about to start.
    return Adopt(newest, group, address=first if group and not mixed else "")


def _lost_recreations(snapshot: Snapshot) -> Outcome | None:
    """Return the adoption of pods that were created again within the attempt, where the stored status does not know of it.

    Without it the operator would delete them, and disrupt members that run. As with attempts, a pod counts only once its earlier ones
    have ended.
    """
    status = snapshot.job.status
    runs = {pod.index: pod.recreated for pod in snapshot.current if not pod.has_stopped and pod.deletion_time is None}
    later = {
        pod.index: pod
        for pod in sorted(snapshot.pods, key=lambda pod: pod.recreated)
        if snapshot.job.is_lone(pod.index)
        and pod.attempt == status.created_in_attempt(pod.index)
        and status.recreated(pod.index) < pod.recreated < MAX_PLAUSIBLE_RECREATIONS
        and pod.index not in runs
    }
    if not later:
        return None
    found = [
        Recreated(member=pod.index, attempt=pod.attempt, count=pod.recreated, launched=True) for pod in later.values()
    ]
    kept = [each for each in status.internal.recreated if each.member not in later]
    names = ", ".join(pod.name for pod in later.values())
    note = f"the stored status does not know that pods were created again: adopting {names}"
    return Outcome(
        {"recreated": sorted([*kept, *found], key=lambda each: each.member)[:MAX_RECREATED]},
        events=[Event("Warning", Reason.ATTEMPT_ADOPTED, note[:MAX_REASON_LENGTH])],
    )


def _without_forged(snapshot: Snapshot) -> list[PodView]:
    """Return the pods that the operator may have created.

    An account that may create pods can give one the name and owner of a worker, unless the chart's admission policies refuse it.
    But the operator replaces a worker only once its earlier pod ends, and numbers workers only up to the group's size.
    """
    stored = snapshot.job.status.attempt
    oldest: dict[int, int] = {}
    members = snapshot.job.members(snapshot.size.desired)
    for pod in snapshot.pods:
        if not pod.has_stopped and pod.deletion_time is None:
            oldest[pod.index] = min(pod.attempt, oldest.get(pod.index, pod.attempt))
    return [
        pod
        for pod in snapshot.pods
        if pod.attempt <= stored or (pod.index in members and oldest.get(pod.index, pod.attempt) >= pod.attempt)
    ]


def _attempt_of_all_agents(snapshot: Snapshot) -> int:
    """Return the attempt that all agents report, where it is later than the stored one; else 0.

    An agent reports for its own worker alone. So all agents must be connected and agree before the job adopts their attempt.
    """
    stored = snapshot.job.status.attempt
    newest = max((agent.attempt for agent in snapshot.agents.values()), default=0)
    if newest <= stored:
        return 0
    pods = _newest_pods(snapshot, newest)
    agents = [snapshot.agents.get(pod.uid) for pod in pods if not pod.has_stopped]
    agreed = all(agent is not None and agent.attempt > stored for agent in agents)
    return newest if agreed and len(pods) == len(snapshot.job.members(snapshot.size.desired)) else 0


def _newest_pods(snapshot: Snapshot, attempt: int) -> list[PodView]:
    """Return the newest pod of each worker, up to this attempt."""
    newest = {
        pod.index: pod
        for pod in sorted(snapshot.pods, key=lambda pod: (pod.attempt, pod.recreated))
        if pod.attempt <= attempt
    }
    return [newest[i] for i in snapshot.job.members(snapshot.size.desired) if i in newest]


def _group_of(pods: Sequence[PodView], attempt: int, size: int) -> Group | None:
    """Return the group of these pods; None where all were created for this attempt."""
    since = min((pod.attempt for pod in pods), default=attempt)
    replaced = {pod.index: pod.attempt for pod in pods if pod.attempt > since}
    return None if since == attempt else made_of(since, replaced, size)
