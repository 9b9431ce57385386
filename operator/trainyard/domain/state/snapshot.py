"""The input of a decision: a job, its pods, its Service and its agents at one moment, reduced to what decisions use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from posixpath import basename

from trainyard.api.agent_protocol import AgentState
from trainyard.api.constants import AGENT
from trainyard.api.internal_status import MAX_REPLACEMENTS, PodGroup, WorkerOrder
from trainyard.api.reasons import Reason
from trainyard.api.recovery import Agent, RestartScope
from trainyard.api.roles import is_worker
from trainyard.api.spec import TrainingJobSpec
from trainyard.api.status import ConditionType, TrainingJobStatus
from trainyard.domain.state.accelerators import ProcessCount, count_processes
from trainyard.domain.state.gang_schedulers import NO_GANG, NO_GANG_SCHEDULERS, GangDecision, GangSchedulers
from trainyard.domain.state.group_health import Health, health
from trainyard.domain.state.job_template import ATTEMPT_OR_SIZE, dns_problem, has_fixed_values, template_hash
from trainyard.domain.state.network_view import NO_NETWORK, NetworkView
from trainyard.domain.state.node_signals import NodeSignals
from trainyard.domain.state.roles import role_members, role_of, rule_of, rules, template_of
from trainyard.domain.state.worker_views import AgentView, PodView, WorkerReport
from trainyard.domain.state.workload import QueueHold, Queueing, QueueRequest


@dataclass(frozen=True)
class JobView:
    """A TrainingJob."""

    uid: str
    namespace: str
    name: str
    generation: int
    resource_version: int
    spec: TrainingJobSpec
    status: TrainingJobStatus
    deleting: bool = False
    stack_request: str = ""
    """The last value of the annotation that asks for the stacks of all ranks; empty where there is none."""
    auto_processes: ProcessCount | None = None
    """What `processesPerReplica: auto` means, which `spec` has as a number; None where the user set the number."""

    queue: QueueRequest | None = None
    """What it asks of a queue of Kueue; None: it has none there. Before `with_queue`: of a queue of Kueue or Volcano."""
    volcano_queue: str | None = None
    """Its queue of Volcano; None: it names none, or its queue is Kueue's."""
    group_hash: str = ""
    """The template hash of the whole job, where `spec` has the template of a role; empty where it has that of the workers."""
    accelerators: int = 0
    """The accelerators that a program of the main container must see; 0: it requests none."""

    @property
    def command(self) -> Sequence[str]:
        """The command of the workers' main container; empty where its image has it."""
        return self.spec.template["spec"]["containers"][0].get("command") or ()

    @property
    def priority_class(self) -> str:
        """The PriorityClass of the workers, of their PodGroup and of their Workload; empty where they have none."""
        return self.spec.scheduling.priority_class_name or self.spec.template["spec"].get("priorityClassName") or ""

    @cached_property
    def processes(self) -> int:
        """The training processes of a worker: the number in the spec, else the accelerators of its pod, else 1."""
        number = self.spec.processes_per_replica
        return number if isinstance(number, int) else count_processes(self.spec).processes

    @cached_property
    def role_members(self) -> Sequence[int]:
        """The indexes of the members of all roles but the workers."""
        return role_members(self.spec)

    def members(self, workers: int) -> Sequence[int]:
        """Return the indexes of all members of a group with so many workers."""
        return [*range(workers), *self.role_members]

    def ranks_of(self, index: int) -> range:
        """Return the ranks of a worker in the current attempt. Nothing else may count ranks from the index of a worker."""
        first = self.status.group_rank(index) * self.processes
        return range(first, first + self.processes)

    def is_lone(self, index: int) -> bool:
        """Return whether this member fails and returns alone, while the others go on."""
        return self._has_lone_members and rule_of(self.spec, index).alone

    @cached_property
    def _has_lone_members(self) -> bool:
        found = rules(self.spec)
        return found.worker.alone or any(rule.alone for rule in found.roles.values())

    def of_member(self, index: int) -> "JobView":
        """Return the job as the member with this index sees it: with the template and the process of its role."""
        role = role_of(self.spec, index)
        if role is None:
            return self
        spec = self.spec.evolve(template=template_of(self.spec, role), processes_per_replica=1)
        return replace(self, spec=spec, accelerators=0, auto_processes=None, group_hash=self.template_hash)

    @property
    def uses_torchrun_rendezvous(self) -> bool:
        """Whether torchrun forms a new group by itself when workers join or exit: an elastic job without the agent."""
        by_torchrun = self.spec.framework.forms_torch_group and self.spec.recovery.agent is Agent.NONE
        return by_torchrun and self.spec.elastic is not None

    @cached_property
    def pods_fit_other_sizes(self) -> bool:
        """Whether a pod can belong to a group of another size than that for which it was created."""
        keeps_pods = self.spec.recovery.min_restart_scope is not RestartScope.GROUP
        return keeps_pods and not has_fixed_values(self.spec, ATTEMPT_OR_SIZE)

    @cached_property
    def template_hash(self) -> str:
        """The hash of the template from which its pods are created."""
        return self.group_hash or template_hash(self.spec)

    @property
    def over_quota(self) -> bool:
        """Whether a quota has rejected pods of the job."""
        running = self.status.condition(ConditionType.RUNNING)
        return running is not None and running.status == "False" and running.reason == Reason.QUOTA_EXCEEDED

    @property
    def rejects_agent(self) -> bool:
        """Whether the agent has been found unable to run in the image."""
        stored = self.status.condition(ConditionType.AGENT_INJECTED)
        return stored is not None and stored.status == "False" and stored.reason == Reason.NO_PYTHON

    @property
    def wants_agent(self) -> bool:
        """Whether the operator injects the agent into the workers, where it can."""
        return self.spec.recovery.agent is Agent.AUTO and bool(self.command) and not self.rejects_agent


@dataclass(frozen=True, slots=True)
class GroupSize:
    """The size of a job's group at one moment, in workers. `plan` computes it once."""

    requested: int
    """`spec.replicas`."""
    allowed: int
    """The size that the job may have and that is nearest to `requested`: elastic and parallelism exclude others."""
    current: int
    """The size for which the current attempt was created."""
    desired: int
    """The size that the group must have now. Where `current` is another one, the group is resized."""
    target: int
    """The size once the joining workers are ready. It equals `current` while no worker may join yet."""
    smallest: int | None = None
    """The smallest size that an elastic group may have; None where it is not elastic."""
    created_for: tuple[int, ...] = ()
    """The sizes for which the current attempt, or each of its pods, was created; 0: its annotation was removed by hand."""
    limited_because: str = ""
    """Why the group has an allowed size in place of the requested one; empty where it has the requested one."""
    invalid_because: str = ""
    """Why the requested size cannot be followed at all; empty where it can."""
    indivisible_because: str = ""
    """Why the ranks of the desired workers cannot be divided into whole copies of the model; empty where they can."""

    @classmethod
    def following(cls, requested: int, created_for: tuple[int, ...] = ()) -> "GroupSize":
        """Return the size of a group that gets all workers that are requested, at once."""
        current = next(filter(None, created_for), requested)
        return cls(requested, requested, current, desired=requested, target=requested, created_for=created_for)

    @property
    def scale_up_pending(self) -> bool:
        """Whether the group keeps its size until more workers are ready to join."""
        return self.desired == self.current < self.allowed

    @property
    def resized_from(self) -> int | None:
        """The size from which the group has to be resized to `desired`; None where it has that size."""
        return next((size for size in self.created_for if size not in {0, self.desired}), None)


@dataclass(frozen=True)
class Snapshot:
    """All input of a decision on a job. Without slots, so that properties are computed once."""

    job: JobView
    pods: Sequence[PodView] = ()
    has_service: bool = False
    agent: bool = False
    """Whether the operator injects an agent into workers."""
    reports: Sequence[WorkerReport] = ()
    """The last progress reports of the workers' agents."""
    agents: Mapping[str, AgentView] = field(default_factory=dict)
    """The agents that have connected, by the UID of their pod."""
    coordinator_up_since: datetime | None = None
    """Since when all agents can connect; None where there is no coordinator. It is reset when connections are refused."""
    queueing: Queueing | None = None
    """What is known of its queue; None: the operator was installed without queues."""
    hold: QueueHold | None = None
    """Why its queue holds the job, as `plan` has found; None where it may run."""
    network: NetworkView = NO_NETWORK
    """The network profile that new workers get."""
    order_by_placement: Sequence[int] = ()
    """The workers in the order in which their ranks follow their placement; empty where it is not known, or not looked for."""
    node_signals: Mapping[str, NodeSignals] = field(default_factory=dict)
    """What is wrong with nodes of the job's pods, where the operator may read nodes."""
    gang_schedulers: GangSchedulers = NO_GANG_SCHEDULERS
    """The gang schedulers that the operator may use."""
    gang: GangDecision = NO_GANG
    """The gang of a group whose pods are about to be created."""
    decided_size: GroupSize | None = None
    """The group's size as `plan` has decided it; None before that."""

    @cached_property
    def current(self) -> tuple[PodView, ...]:
        """The pods of the current attempt, by index."""
        has, roles = self.job.status.has, self.job.role_members
        pods = (
            p for p in self.pods if has(p.index, p.attempt, p.recreated) and (is_worker(p.index) or p.index in roles)
        )
        return tuple(sorted(pods, key=lambda p: p.index))

    @cached_property
    def current_workers(self) -> Sequence[PodView]:
        """The workers' pods of the current attempt, by index; none of other roles."""
        return [pod for pod in self.current if is_worker(pod.index)]

    @cached_property
    def health(self) -> Health:
        """The health of the group as its pods show it, without what else it waits for."""
        members = self.job.members(self.size.desired)
        if self.job.status.running_time is None:
            return health(self.current, members)
        # Once all have run, the group runs without those that fail alone.
        needed = [index for index in members if not self.job.is_lone(index)] or members
        return health([pod for pod in self.current if pod.index in needed], needed)

    @cached_property
    def attempt_reports(self) -> tuple[WorkerReport, ...]:
        """The reports of the current attempt, but for those of members that go on alone: their steps are not those of the group."""
        return tuple(
            report
            for report in self.reports
            if report.attempt == self.job.status.attempt and not self.job.is_lone(report.index)
        )

    @cached_property
    def agents_connected_since(self) -> datetime | None:
        """Since when at least one agent has been connected without a break; None where none is."""
        return min((each.since for each in self.agents.values() if each.connected and each.since), default=None)

    @cached_property
    def size(self) -> GroupSize:
        """The group's size as decided, or as if the group followed `spec.replicas` where nothing is decided yet."""
        if self.decided_size is not None:
            return self.decided_size
        stored = self.job.status.size
        created_for = (stored,) if stored else tuple(pod.workers for pod in self.current)
        return GroupSize.following(self.job.spec.replicas, created_for)

    @cached_property
    def expects_agents(self) -> bool:
        """Whether a new worker has an agent: one that the operator injects, or its image's own."""
        own = bool(self.job.command) and basename(str(self.job.command[0])) == AGENT
        return own or (self.agent and self.job.wants_agent)

    @cached_property
    def joinable(self) -> bool:
        """Whether more workers could start an attempt together with the existing ones."""
        group = self.job.status.internal.group
        few = group is None or len(group.replacements) < MAX_REPLACEMENTS
        served = self.coordinator_up_since is not None and self.expects_agents
        return self.job.pods_fit_other_sizes and few and served and not self.network_changed

    @cached_property
    def network_changed(self) -> bool:
        """Whether new workers would get other network settings than the existing ones, with which ranks may not find each other."""
        return any(pod.network != self.network.stamp for pod in self.current_workers)

    @cached_property
    def dns_problem(self) -> str:
        """Why the desired workers cannot find each other by name; empty where they can."""
        return dns_problem(self.job.spec, self.job.namespace, self.size.desired)

    @cached_property
    def ready_workers(self) -> frozenset[int]:
        """The workers whose agents can start the current attempt."""
        attempt, waiting = self.job.status.attempt, AgentState.WAITING
        agents = ((pod.index, self.agents.get(pod.uid)) for pod in self.current)
        return frozenset(i for i, a in agents if a and a.connected and a.state is waiting and a.attempt == attempt)

    @cached_property
    def awaits_order(self) -> bool:
        """Whether the workers of the group wait for their order by rank, and all of them have a node, from which it follows.

        Each pod has an annotation if its agent waits. Without it on one of them, for example of an earlier release, ranks follow the index.
        """
        is_open, workers = self.job.status.internal.worker_order is None, self.current_workers
        return is_open and bool(workers) and all(pod.ranks_ordered and pod.node for pod in workers)

    @cached_property
    def first_order(self) -> WorkerOrder | None:
        """The order that the group gets as it starts; None where it has one already, or where ranks follow the index."""
        order = [*self.order_by_placement]
        is_whole = len(order) == self.size.desired and order != sorted(order)
        return WorkerOrder(workers=order if is_whole else []) if self.awaits_order else None

    @cached_property
    def missing(self) -> Sequence[int]:
        """The desired workers without a pod of the current attempt."""
        present = {pod.index for pod in self.current}
        return [i for i in self.job.members(self.size.desired) if i not in present]

    @cached_property
    def new_workers(self) -> frozenset[int]:
        """The workers whose pods are created for the current attempt. Others keep theirs."""
        status, workers = self.job.status, {*self.job.members(self.size.desired), *(pod.index for pod in self.pods)}
        return frozenset(i for i in workers if status.created_in_attempt(i) == status.attempt)

    @cached_property
    def created(self) -> Sequence[int]:
        """The workers whose pods have existed: a missing one was deleted."""
        launched = self.job.status.internal.launched_attempt == self.job.status.attempt
        return [i for i in self.job.members(self.size.desired) if launched or i not in self.new_workers]

    @cached_property
    def prepared_workers(self) -> frozenset[int]:
        """The joining workers that have started and are prepared to join."""
        waiting = AgentState.WAITING
        # The agent may connect before the node reports the container as running.
        started = ((pod.index, self.agents.get(pod.uid)) for pod in self.joining if pod.running and not pod.disruption)
        return frozenset(i for i, a in started if a and a.connected and a.state is waiting and a.prepared)

    @cached_property
    def outdated(self) -> bool:
        """Whether a pod of the group was created from an earlier template than the job's."""
        # Each change of the template raises the generation. Defaults of a newer CRD change the hash alone.
        generation = self.job.generation
        hashes = {p.template_hash for p in (*self.current, *self.joining) if p.generation < generation} - {""}
        return bool(hashes) and hashes != {self.job.template_hash}

    @cached_property
    def old(self) -> tuple[PodView, ...]:
        """The pods of earlier attempts that are no longer used."""
        status = self.job.status
        used = {p.uid for p in (*self.current, *self.joining)}
        return tuple(p for p in self.pods if p.attempt <= status.attempt and p.uid not in used)

    @cached_property
    def joining(self) -> tuple[PodView, ...]:
        """The pods of the workers that join the group."""
        is_joining = self.job.status.is_joining
        return tuple(p for p in self.pods if is_joining(p.index, p.attempt))

    @property
    def unused_pod_group(self) -> PodGroup | None:
        """The PodGroup that no pod needs any more: of an earlier group, or of a job that has finished or is at rest."""
        status = self.job.status
        used = status.pod_group and not (status.finished or status.at_rest)
        return None if used else status.internal.pod_group

    @cached_property
    def unused(self) -> Sequence[PodView]:
        """The pods that nothing needs any more: all of a job that ends or is at rest, else old and terminating joining ones."""
        status = self.job.status
        if self.job.deleting or status.finished or status.at_rest:
            return self.pods
        return (*self.old, *(p for p in self.joining if p.deletion_time))
