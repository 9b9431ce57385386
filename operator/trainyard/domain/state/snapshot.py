"""What a decision looks at: a job, its pods and its Service at one moment, reduced to what matters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from trainyard.api.agent_protocol import AgentState as Doing, StopProgress as LeaveView
from trainyard.api.spec import TrainingJobSpec
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.replicas import GroupSize
from trainyard.domain.state.termination import Kind as TerminationKind

__all__ = [
    "UNSCHEDULABLE",
    "AgentView",
    "Doing",
    "Exit",
    "JobView",
    "LeaveView",
    "PodView",
    "RankProgress",
    "Snapshot",
    "Trouble",
    "WorkerReport",
]

UNSCHEDULABLE = "Unschedulable"
"""What the scheduler says of a pod for which it has looked for a node, and found none."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something waits, in the words of the scheduler or the node."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a container."""

    time: datetime
    code: int
    reason: str
    message: str
    init_container: str | None = None
    """The init container that it was, if it was one."""
    step: int | None = None
    """The last step that the rank which ended it had done, where its program tells its progress."""
    rank: int | None = None
    """That rank, where the agent names it."""
    kind: TerminationKind | None = None
    """What the agent reports as the cause; None where no agent does."""
    headline: str = ""
    """That in one sentence for people: the first line of `message`."""
    location: str = ""
    """Where an exception was raised, the innermost frame first."""
    peer_lost: bool = False
    """Whether the rank exited because it lost another rank."""
    hardware_error: str = ""
    """The words of its output that point to broken hardware."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A worker's pod."""

    uid: str
    namespace: str
    name: str
    resource_version: int
    job_uid: str
    attempt: int
    index: int
    workers: int
    """The size of the group that it was made for; 0 where its annotation was taken away by hand."""
    phase: str
    """Pending, Running, Succeeded, Failed or Unknown."""
    node: str | None = None
    ip: str = ""
    """Its address, once it has one."""
    scheduled: bool = False
    ready: bool = False
    running: bool = False
    """Whether the main container runs."""
    running_since: datetime | None = None
    """By its node's clock."""
    ended: bool = False
    """Whether all its containers have ended. The node says so a moment before it moves the phase on."""
    exit: Exit | None = None
    """How the main container ended, or the init container that kept it from starting."""
    conditions: frozenset[str] = frozenset()
    """The types of the conditions that are True, without those that every pod has."""
    trouble: Trouble | None = None
    """Why it is not placed, or its containers do not start."""
    taken_by: Trouble | None = None
    """Who or what has taken it away or asked for that: a deletion, an eviction, a preemption, a node that was lost."""
    taken_at: datetime | None = None
    """When that was, if it is known."""
    deletion_time: datetime | None = None
    """When its grace period ends or ended; set as soon as its deletion was asked for."""
    clock_behind: bool = False
    """Whether its node's clock is behind that of the control plane, as far as the pod tells."""
    removed: bool = False
    """Whether its deletion waits for its node no longer: what keeps it is a finalizer."""
    restartable: bool = False
    """Whether its node starts the main container anew where the agent ends it for that."""
    node_lost_at: datetime | None = None
    """When the control plane gave it up because nothing is heard of its node; None where the node has told of it since."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class RankProgress:
    """How far a rank is."""

    rank: int
    step: int | None
    """The last step that it has done; None where it has told its phase alone."""
    phase: str
    total_steps: int | None = None
    loss: float | None = None
    step_seconds: float | None = None
    """What a step takes as a rule."""
    stack: tuple[str, ...] = ()
    """Where it stands, the innermost frame first: told where it hangs."""
    first: int | None = None
    """The first step that it has told in this attempt, where its program uses our library."""
    own_seconds: float | None = None
    """Those of a step in which it works itself and does not wait for others, where its program tells."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """What else its program measures, by the names of `MeasuredProgress`."""
    blocked: str = ""
    """Why it cannot say where it is: `stopped` by a signal, or `uninterruptible` in the kernel."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What the agent of a worker has told last."""

    attempt: int
    index: int
    """The worker's."""
    ranks: tuple[RankProgress, ...]
    at: datetime | None = field(default=None, compare=False)
    """When it was told, by the operator's clock and to the fraction of a second; None: now."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """What the agent of a worker has said last, and whether it is still there."""

    attempt: int
    doing: Doing
    exit: Exit | None = None
    """How the rank ended that failed."""
    said_at: datetime | None = None
    """When it said that for the first time."""
    since: datetime | None = None
    """Since when it has been there without a break."""
    left_at: datetime | None = None
    """When its connection was lost; None while it stands."""
    vanished: bool = False
    """Whether that was because its node did not answer any more."""
    leave: LeaveView | None = None
    """None where its ranks cannot come to an end together with all others."""
    prepared: bool = True
    """Whether its ranks' next start is prepared, as far as it can be."""

    @property
    def connected(self) -> bool:
        """Whether it is there."""
        return self.left_at is None and self.doing not in {Doing.ENDED, Doing.RESTARTING}


@dataclass(frozen=True)
class Snapshot:
    """All that a decision on a job rests on. Without slots, so that what is asked again and again is computed once."""

    job: JobView
    pods: Sequence[PodView] = ()
    has_service: bool = False
    agent: bool = False
    """Whether the operator has an agent to bring into workers."""
    reports: Sequence[WorkerReport] = ()
    """What the workers' agents have told last of their ranks' progress."""
    agents: Mapping[str, AgentView] = field(default_factory=dict)
    """The agents that have called, by the UID of their pod."""
    hearing_since: datetime | None = None
    """Since when all agents can call; None where there is no coordinator. Begins anew where not all of them were let in."""
    decided_size: GroupSize | None = None
    """The group's size as `plan` has decided it; None before that."""

    @cached_property
    def current(self) -> tuple[PodView, ...]:
        """The pods of which the current attempt is made, by index."""
        has = self.job.status.has
        return tuple(sorted((p for p in self.pods if has(p.index, p.attempt)), key=lambda p: p.index))

    @cached_property
    def told(self) -> tuple[WorkerReport, ...]:
        """The reports of the current attempt."""
        return tuple(report for report in self.reports if report.attempt == self.job.status.attempt)

    @cached_property
    def heard_since(self) -> datetime | None:
        """Since when one agent at least has been there without a break; None where none is."""
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
    def old(self) -> tuple[PodView, ...]:
        """The pods of earlier attempts that are not used any more."""
        status = self.job.status
        used = {p.uid for p in (*self.current, *self.joining)}
        return tuple(p for p in self.pods if p.attempt <= status.attempt and p.uid not in used)

    @cached_property
    def joining(self) -> tuple[PodView, ...]:
        """The pods of the workers that are to join the group."""
        awaits = self.job.status.is_joining
        return tuple(p for p in self.pods if awaits(p.index, p.attempt))
