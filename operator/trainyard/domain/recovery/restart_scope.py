"""By what means a group starts anew: the cheapest that is possible, and the next one where it did not help. Pure."""

import re
from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta

from trainyard.api.internal_status import MAX_REPLACEMENTS, Group, Rendezvous, Replacement
from trainyard.api.recovery import RestartScope
from trainyard.api.spec import TrainingJobSpec
from trainyard.api.status import Avoidance, StatusChanges, SuspectNode, TrainingJobStatus
from trainyard.domain.recovery.agent_injection import accompanied
from trainyard.domain.recovery.agent_reports import stays
from trainyard.domain.recovery.failure_rules import LONG, STEADY, got_further, in_a_row, more
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.object_names import worker_host
from trainyard.domain.state.rank_layout import uses_torchrun_rendezvous
from trainyard.domain.state.snapshot import JobView, PodView, Snapshot
from trainyard.domain.wording import counted

ENOUGH = 2
"""So often a scope is tried without getting further."""
SCOPES = tuple(RestartScope)
FIXED = re.compile(r"\$\((?:TRAINYARD_ATTEMPT|(?:PET_)?MASTER_(?:ADDR|PORT)|PET_RDZV_(?:ENDPOINT|ID))\)")
"""What the kubelet writes into a command or a variable once, when it starts the container: in a later attempt it would be wrong."""
COUNTED = re.compile(r"\$\((?:TRAINYARD_REPLICAS|WORLD_SIZE|PET_NNODES)\)")
"""Likewise, in a group of another size."""


@dataclass(frozen=True, slots=True)
class Step:
    """How the next attempt begins."""

    scope: RestartScope
    tries: int
    """How many attempts in a row begin so."""
    group: Group | None
    """The pods that it is made of; None: all are made anew."""
    told: str
    """What happens to the workers, in words."""


def climb(snapshot: Snapshot, cause: Cause, suspects: Sequence[SuspectNode], ran: timedelta) -> Step:
    """The step after `cause`. `suspects`: with it; `ran`: for how long all workers did."""
    job, status = snapshot.job, snapshot.job.status
    everyone = set(range(snapshot.size.desired))
    bad = {node.name for node in suspects if node.avoidance is not Avoidance.NONE}
    # Other nodes that are avoided where possible are not left: theirs were perhaps the only places.
    left = cause.pod.node if cause.pod and cause.pod.node in bad else None
    fit = {pod.index for pod in snapshot.current if _stays(snapshot, pod) and not (left and pod.node == left)}
    further = _further(status, cause, ran)
    lowest = RestartScope.GROUP if is_fixed(job.spec) else job.spec.recovery.min_restart_scope
    failing = everyone - fit
    least = max(lowest, _above(status, cause, further=further), key=SCOPES.index)
    culprit = cause.culprit.pod.index if cause.culprit else cause.index
    container = culprit if least is RestartScope.CONTAINER and not failing and _restartable(snapshot, culprit) else None
    if least is not RestartScope.PROCESS and container is None:
        failing.add(culprit)
    scope = max(least, RestartScope.POD if failing else RestartScope.PROCESS, key=SCOPES.index)
    alone = bool(failing) and not _can_be_joined(snapshot, failing)
    group = (
        None
        if scope is RestartScope.GROUP or alone or failing >= everyone
        else _group(snapshot, dict.fromkeys(failing, status.attempt + 1), container)
    )
    scope = scope if group else RestartScope.GROUP
    again = not further and status.internal.backoff.scope is scope
    told = _told(scope, failing, len(everyone)) if container is None else _told_of_container(container, len(everyone))
    return Step(scope, more(status.internal.backoff.scope_attempts or 0) if again else 1, group, told)


def resized(snapshot: Snapshot) -> tuple[Group | None, str]:
    """The pods of an attempt with as many workers as `replicas` says now: those that stay, and new ones. And what happens to the workers, in words.

    None: all are made anew.
    """
    job, wished = snapshot.job, snapshot.size.desired
    kept = {pod.index for pod in snapshot.current if pod.index < wished and _stays(snapshot, pod)}
    came = {pod.index: pod.attempt for pod in snapshot.joining if pod.index < wished and _stays(snapshot, pod)}
    new = set(range(wished)) - kept - came.keys()
    joined = not new or _can_be_joined(snapshot, new)
    group = (
        _group(snapshot, came | dict.fromkeys(new, job.status.attempt + 1))
        if kept and keeps_pods(job.spec) and joined
        else None
    )
    if group is None:
        return None, "all workers start anew"
    stay = f"{counted(len(kept), 'worker')} {'keeps its pod' if len(kept) == 1 else 'keep their pods'}"
    join = f"{counted(len(came), 'worker')} {'joins' if len(came) == 1 else 'join'}"
    return group, f"{', '.join([stay, *([join] if came else []), *([_few(new)] if new else [])])}, and all start anew"


def _stays(snapshot: Snapshot, pod: PodView) -> bool:
    """Whether the next attempt can begin in this pod."""
    if uses_torchrun_rendezvous(snapshot.job.spec):
        return pod.running and not (pod.disruption or pod.ended)
    return stays(snapshot, pod)


def _restartable(snapshot: Snapshot, index: int) -> bool:
    """Whether the container of this worker, which keeps its pod, can start anew: its agent has to end it, and its node to start it."""
    return any(pod.index == index and pod.restartable and pod.uid in snapshot.agents for pod in snapshot.current)


def _can_be_joined(snapshot: Snapshot, new: AbstractSet[int]) -> bool:
    """Whether those that stay can begin together with these new ones: an agent can be told when, and torchrun meets at worker 0."""
    by_itself = uses_torchrun_rendezvous(snapshot.job.spec) and 0 not in new
    return by_itself or accompanied(snapshot.job, brought=snapshot.agent)


def keeps_pods(spec: TrainingJobSpec) -> bool:
    """Whether a pod can belong to a group of another size than that for which it was made."""
    return spec.recovery.min_restart_scope is not RestartScope.GROUP and not is_fixed(spec, COUNTED)


def can_join(snapshot: Snapshot) -> bool:
    """Whether more workers could begin an attempt together with those that are there."""
    status = snapshot.job.status
    few = len(status.internal.group.replacements if status.internal.group else ()) < MAX_REPLACEMENTS
    heard = snapshot.coordinator_up_since is not None and accompanied(snapshot.job, brought=snapshot.agent)
    return keeps_pods(snapshot.job.spec) and few and heard


def is_fixed(spec: TrainingJobSpec, also: re.Pattern[str] | None = None) -> bool:
    """Whether the main container's command or environment holds what differs from attempt to attempt, or is like `also`."""
    main = spec.template["spec"]["containers"][0]
    words = [*(main.get("command") or ()), *(main.get("args") or ())]
    values = [variable.get("value") or "" for variable in main.get("env") or ()]
    patterns = [FIXED, also] if also else [FIXED]
    return any(pattern.search(str(text)) for text in (*words, *values) for pattern in patterns)


def known_group(snapshot: Snapshot, attempt: int) -> tuple[list[PodView], Group | None]:
    """The newest pod of each worker, and the group that they are, where not all were made for this attempt."""
    newest = {pod.index: pod for pod in sorted(snapshot.pods, key=lambda pod: pod.attempt) if pod.attempt <= attempt}
    pods = [newest[i] for i in sorted(newest) if i < snapshot.size.desired]
    since = min((pod.attempt for pod in pods), default=attempt)
    replaced = {pod.index: pod.attempt for pod in pods if pod.attempt > since}
    return pods, None if since == attempt else _made_of(since, replaced, snapshot.size.desired)


def told_by_all(snapshot: Snapshot) -> int:
    """The attempt at which the workers say they are, where it is a later one than is stored and none says otherwise; else 0.

    An agent speaks for its own worker. The word of one must not move the others, nor that of some while one has yet to call.
    """
    stored = snapshot.job.status.attempt
    newest = max((agent.attempt for agent in snapshot.agents.values()), default=0)
    if newest <= stored:
        return 0
    pods, _ = known_group(snapshot, newest)
    agents = [snapshot.agents.get(pod.uid) for pod in pods if not pod.ended]
    agreed = all(agent is not None and agent.attempt > stored for agent in agents)
    return newest if agreed and len(pods) == snapshot.size.desired else 0


def met(job: JobView, group: Group | None) -> StatusChanges:
    """Where those that stay need no word of ours when the next attempt begins: torchrun has them meet."""
    if group is None or not uses_torchrun_rendezvous(job.spec):
        return {}
    return {"rendezvous": Rendezvous(attempt=job.status.attempt + 1, address=worker_host(job.name, 0))}


def opening(snapshot: Snapshot) -> str | None:
    """The address of worker 0, where the others find it; None until it has one."""
    if snapshot.size.desired == 1:
        return "localhost"
    first: PodView | None = next((pod for pod in snapshot.current if pod.index == 0), None)
    return first.ip or None if first else None


def _further(status: TrainingJobStatus, cause: Cause, ran: timedelta) -> bool:
    """Whether the job has got further since the attempt before: by steps where they are known, else by time."""
    if cause.step is not None and status.internal.restart_budget.furthest_step is not None:
        return got_further(status.internal.restart_budget, cause)
    return ran >= (LONG if cause.charged else STEADY)


def _above(status: TrainingJobStatus, cause: Cause, *, further: bool) -> RestartScope:
    """The scope below which there is no use in trying."""
    tried = status.internal.backoff.scope
    if further or tried is None:
        return RestartScope.PROCESS
    if tried is RestartScope.PROCESS and in_a_row(status, cause):
        # What breaks at one step because of a container or a node is told from a bad batch by a new pod, before `noProgressLimit` is reached.
        return RestartScope.POD
    if (status.internal.backoff.scope_attempts or 0) < ENOUGH or tried is SCOPES[-1]:
        return tried
    return SCOPES[SCOPES.index(tried) + 1]


def _group(snapshot: Snapshot, others: Mapping[int, int], container: int | None = None) -> Group | None:
    """The pods of the next attempt, where `others` are made for which attempt, by worker; None where too many differ.

    `container`: the worker whose container starts anew.
    """
    status, workers = snapshot.job.status, snapshot.size.desired
    replaced = status.internal.group.replacements if status.internal.group else ()
    before = {worker: each.attempt for each in replaced for worker in each.workers}
    since = status.internal.group.created_in_attempt if status.internal.group else status.attempt
    return _made_of(since, {**before, **others}, workers, container)


def _made_of(since: int, replaced: Mapping[int, int], workers: int, container: int | None = None) -> Group | None:
    """The group; `replaced`: for which attempt other pods were made, by worker. None where too many were."""
    others: list[Replacement] = []
    for worker in sorted(w for w in replaced if w < workers):
        last = others[-1] if others else None
        if last and (worker - 1 in last.workers) and replaced[worker] == last.attempt:
            others[-1] = last.evolve(last_worker=worker)
        else:
            others.append(Replacement(worker=worker, attempt=replaced[worker]))
    if len(others) > MAX_REPLACEMENTS:
        return None
    return Group(created_in_attempt=since, replacements=others, size=workers, restarting_container=container)


def _told(scope: RestartScope, failing: AbstractSet[int], workers: int) -> str:
    if scope is RestartScope.PROCESS:
        return "all processes start anew in place" if workers > 1 else "its processes start anew in place"
    if scope is RestartScope.GROUP:
        return "all workers start anew"
    return f"{_few(failing)}, the processes of the others start anew in place,"


def _told_of_container(index: int, workers: int) -> str:
    others = ", the processes of the others in place," if workers > 1 else ""
    return f"the container of worker {index} starts anew{others}"


def _few(new: AbstractSet[int]) -> str:
    few = sorted(new)
    if len(few) == 1:
        return f"worker {few[0]} gets a new pod"
    return f"{counted(len(few), 'worker')} ({', '.join(map(str, few[:8]))}{' …' if len(few) > 8 else ''}) get new pods"
