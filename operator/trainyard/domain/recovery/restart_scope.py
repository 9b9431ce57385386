"""Choose the restart scope of the next attempt: the cheapest that is possible, escalated where it did not help. Pure."""

from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta

from trainyard.api.agent_protocol import AgentState
from trainyard.api.base import increment
from trainyard.api.internal_status import MAX_REPLACEMENTS, Group, Replacement
from trainyard.api.recovery import RestartScope
from trainyard.api.roles import is_worker
from trainyard.api.status import Avoidance, SuspectNode, TrainingJobStatus
from trainyard.domain.decisions import ALL_WORKERS
from trainyard.domain.recovery.repeated_failures import is_repeated
from trainyard.domain.recovery.restart_budget import (
    ASSUMED_PROGRESS,
    STABLE_RUN,
    failures_at_step,
    got_further,
)
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.job_template import has_fixed_values
from trainyard.domain.state.roles import member
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.worker_ranges import consecutive
from trainyard.domain.state.worker_views import PodView
from trainyard.domain.wording import counted

MAX_ATTEMPTS_PER_SCOPE = 2
"""Attempts with one scope without progress, before recovery escalates."""
SCOPES = tuple(RestartScope)


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """How the next attempt starts."""

    scope: RestartScope
    attempts: int
    """The number of consecutive attempts with this scope, the next one included."""
    group: Group | None
    """The pods of the next attempt; None: all are created for it."""
    new_pods: frozenset[int]
    """The workers that get a new pod, where `scope` is Pod."""
    container: int | None
    """The worker whose container restarts, where `scope` is Container."""
    disconnected: frozenset[int] = frozenset()
    """Those of `new_pods` that run, but whose agent is not connected."""


def choose_restart_scope(
    snapshot: Snapshot, cause: Cause, suspects: Sequence[SuspectNode], ran: timedelta
) -> RestartDecision:
    """Return the cheapest scope that is possible and may still help after `cause`.

    `suspects`: the suspect nodes, that of `cause` included. `ran`: for how long all workers ran.
    """
    status, workers = snapshot.job.status, set(snapshot.job.members(snapshot.size.desired))
    culprit = cause.culprit.pod.index if cause.culprit else cause.index
    progressed = _progressed(status, cause, ran)
    least = _least_scope(snapshot.job, cause, progressed=progressed)
    new_pods = workers - _reusable(snapshot, cause, suspects)
    container = least is RestartScope.CONTAINER and not new_pods and _restartable(snapshot, culprit)
    if least is not RestartScope.PROCESS and not container:
        new_pods.add(culprit)
    scope = max(least, RestartScope.POD if new_pods else RestartScope.PROCESS, key=SCOPES.index)
    group = _next_group(snapshot, scope, new_pods, culprit if container else None)
    scope = scope if group else RestartScope.GROUP
    repeated = not progressed and status.internal.backoff.scope is scope
    attempts = increment(status.internal.backoff.scope_attempts or 0) if repeated else 1
    disconnected = frozenset(new_pods & _disconnected(snapshot) - {culprit})
    return RestartDecision(scope, attempts, group, frozenset(new_pods), culprit if container else None, disconnected)


def describe_restart(decision: RestartDecision, workers: int) -> str:
    """Return what is restarted in a group of so many workers, as a verb phrase."""
    if decision.scope is RestartScope.GROUP:
        return ALL_WORKERS
    if decision.container is not None:
        others = " and the other workers' processes in place" if workers > 1 else ""
        return f"restarting the container of {member(decision.container)}{others}"
    if decision.scope is RestartScope.PROCESS:
        return "restarting processes in place"
    why = _describe_disconnected(decision.disconnected)
    return f"creating {_describe_new_pods(decision.new_pods)}{why} and restarting the other workers' processes in place"


def _reusable(snapshot: Snapshot, cause: Cause, suspects: Sequence[SuspectNode]) -> set[int]:
    """Return the workers whose pods can be part of the next attempt."""
    avoided = {node.name for node in suspects if node.avoidance is not Avoidance.NONE}
    # Pods on other nodes whose avoidance is only preferred stay: there may be no other nodes.
    left = cause.pod.node if cause.pod and cause.pod.node in avoided else None
    return {pod.index for pod in snapshot.current if _can_keep(snapshot, pod) and not (left and pod.node == left)}


def _least_scope(job: JobView, cause: Cause, *, progressed: bool) -> RestartScope:
    """Return the smallest scope that the spec allows and that has not been tried in vain."""
    allowed = RestartScope.GROUP if has_fixed_values(job.spec) else job.spec.recovery.min_restart_scope
    return max(allowed, _escalated(job.status, cause, progressed=progressed), key=SCOPES.index)


def _next_group(
    snapshot: Snapshot, scope: RestartScope, new_pods: AbstractSet[int], container: int | None
) -> Group | None:
    """Return the pods of the next attempt; None where all have to be created for it."""
    job = snapshot.job
    if scope is RestartScope.GROUP or new_pods >= set(snapshot.job.members(snapshot.size.desired)):
        return None
    if new_pods and not _can_be_joined(snapshot, new_pods):
        return None
    return _group(snapshot, dict.fromkeys(new_pods, job.status.attempt + 1), container)


def choose_resized_group(snapshot: Snapshot) -> tuple[Group | None, str]:
    """Return the pods of an attempt with the desired number of workers, and what happens to the workers as a verb phrase.

    The group is None where all pods are created again.
    """
    job, desired = snapshot.job, snapshot.size.desired
    members = job.members(desired)
    kept = {pod.index for pod in snapshot.current if pod.index in members and _can_keep(snapshot, pod)}
    came = {pod.index: pod.attempt for pod in snapshot.joining if pod.index < desired and _can_keep(snapshot, pod)}
    new = set(members) - kept - came.keys()
    if not kept or not job.pods_fit_other_sizes or (new and not _can_be_joined(snapshot, new)):
        return None, ALL_WORKERS
    group = _group(snapshot, came | dict.fromkeys(new, job.status.attempt + 1))
    return (group, _describe_resized(len(kept), len(came), new)) if group else (None, ALL_WORKERS)


def _describe_resized(kept: int, came: int, new: AbstractSet[int]) -> str:
    """Return with which pods the group restarts, as a verb phrase."""
    parts = [counted(kept, "existing pod")]
    parts += [counted(came, "joining worker")] if came else []
    parts += [_describe_new_pods(new)] if new else []
    return f"restarting with {' and '.join([', '.join(parts[:-1]), parts[-1]] if parts[:-1] else parts)}"


def _can_keep(snapshot: Snapshot, pod: PodView) -> bool:
    """Return whether the next attempt can start in this pod: its agent is reachable, or the pod is new and has yet to start."""
    if pod.disruption or pod.ended:
        return False
    if snapshot.job.uses_torchrun_rendezvous:
        return pod.running
    agent, status = snapshot.agents.get(pod.uid), snapshot.job.status
    if agent is None:
        # A new pod has yet to start.
        starts = pod.index in snapshot.new_workers and status.awaiting_rendezvous
        return starts and pod.issue is None and pod.exit is None
    there = not agent.vanished and agent.state is not AgentState.ENDED
    return there and agent.attempt <= status.attempt and pod.running


def _disconnected(snapshot: Snapshot) -> set[int]:
    """Return the running workers whose agent is expected but not connected, for example because it has just started."""
    if not snapshot.expects_agents:
        return set()
    agents = snapshot.agents
    return {
        pod.index
        for pod in snapshot.current
        if pod.running and not pod.disruption and (pod.uid not in agents or agents[pod.uid].vanished)
    }


def _restartable(snapshot: Snapshot, index: int) -> bool:
    """Return whether the container of this worker can restart in its pod: its agent exits, and its node starts it again."""
    return any(pod.index == index and pod.restartable and pod.uid in snapshot.agents for pod in snapshot.current)


def _can_be_joined(snapshot: Snapshot, new: AbstractSet[int]) -> bool:
    """Return whether kept workers can start together with these new ones: through agents, or through torchrun at worker 0."""
    if snapshot.network_changed:
        return False
    by_itself = snapshot.job.uses_torchrun_rendezvous and 0 not in new
    return by_itself or snapshot.expects_agents


def _progressed(status: TrainingJobStatus, cause: Cause, ran: timedelta) -> bool:
    """Return whether the job has made progress since the previous attempt: by steps where they are known, else by time."""
    if cause.step is not None and status.internal.restart_budget.furthest_step is not None:
        return got_further(status.internal.restart_budget, cause)
    return ran >= (ASSUMED_PROGRESS if cause.counted else STABLE_RUN)


def _escalated(status: TrainingJobStatus, cause: Cause, *, progressed: bool) -> RestartScope:
    """Return the smallest scope that may still help after the scopes that were tried."""
    tried = status.internal.backoff.scope
    if progressed or tried is None:
        return RestartScope.PROCESS
    in_place = tried in {RestartScope.PROCESS, RestartScope.CONTAINER}
    if in_place and is_repeated(status, cause):
        return RestartScope.POD
    if tried is RestartScope.PROCESS and failures_at_step(status, cause):
        # A new pod tells a faulty container or node from a bad batch, before `noProgressLimit` is reached.
        return RestartScope.POD
    if (status.internal.backoff.scope_attempts or 0) < MAX_ATTEMPTS_PER_SCOPE or tried is SCOPES[-1]:
        return tried
    return SCOPES[SCOPES.index(tried) + 1]


def _group(snapshot: Snapshot, others: Mapping[int, int], container: int | None = None) -> Group | None:
    """Return the pods of the next attempt; None where too many were created for different attempts.

    `others`: the attempt for which each new pod is created, by worker. `container`: the worker whose container restarts.
    """
    status, workers = snapshot.job.status, snapshot.size.desired
    replaced = status.internal.group.replacements if status.internal.group else ()
    before = {worker: each.attempt for each in replaced for worker in each.workers}
    since = status.internal.group.created_in_attempt if status.internal.group else status.attempt
    return made_of(since, {**before, **others}, workers, container)


def made_of(since: int, replaced: Mapping[int, int], workers: int, container: int | None = None) -> Group | None:
    """Return the group; None where it has too many replacements. `replaced`: the attempt of each replacement, by worker."""
    ranges = consecutive(
        (worker for worker in replaced if worker < workers or not is_worker(worker)), replaced.__getitem__
    )
    others = [_replacement(run, replaced[run[0]]) for run in ranges]
    if len(others) > MAX_REPLACEMENTS:
        return None
    return Group(created_in_attempt=since, replacements=others, size=workers, restarting_container=container)


def _replacement(workers: Sequence[int], attempt: int) -> Replacement:
    """Return the entry of consecutive workers whose pods were created for one attempt."""
    return Replacement(worker=workers[0], attempt=attempt, last_worker=workers[-1] if len(workers) > 1 else None)


def _describe_disconnected(workers: AbstractSet[int]) -> str:
    if not workers:
        return ""
    few = sorted(workers)
    listed = _listed(few)
    agents = f"the agent of {listed} is" if len(few) == 1 else f"the agents of {listed} are"
    return f", because {agents} not connected,"


def _describe_new_pods(new: AbstractSet[int]) -> str:
    few = sorted(new)
    if len(few) == 1:
        return f"a new pod for {member(few[0])}"
    return f"new pods for {counted(len(few), 'worker' if all(map(is_worker, few)) else 'member')} ({_listed(few).removeprefix('workers ')})"


def _listed(few: Sequence[int]) -> str:
    """Return the first of these members: `workers 0, 1`, or `ps 0, worker 1`."""
    more = " …" if len(few) > 8 else ""
    if all(map(is_worker, few)):
        return f"worker{'s' if len(few) > 1 else ''} {', '.join(map(str, few[:8]))}{more}"
    return f"{', '.join(map(member, few[:8]))}{more}"
