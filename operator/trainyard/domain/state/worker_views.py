"""What is observed of a worker: its pod, as the API server has it, and what its agent reports. Pure."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from trainyard.api.agent_protocol import AgentState, StopProgress
from trainyard.domain.state.termination import Exit

STOP_DEADLINE_SECONDS = 1
"""The `activeDeadlineSeconds` that stops a pod: its node then terminates the containers with their grace period, and keeps the pod."""
UNSCHEDULABLE = "Unschedulable"
"""The reason of the condition PodScheduled where the scheduler has found no node for the pod."""
SLOW_INIT = timedelta(minutes=5)
"""How long an init container may run before an event reports it: many load data."""
STOP_SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGTERM")
"""Signals that terminate a deleted pod: sent by the kubelet, set as STOPSIGNAL in images, or sent by preStop hooks."""
STOP_SIGNAL_CODES = frozenset(128 + signal.Signals[name] for name in STOP_SIGNALS)
"""The exit codes of programs that end by them."""
CAUSED_BY_WORKER = frozenset({"OOMKilled", "Evicted"})
"""The reasons of a node that has terminated a worker for its own use of resources."""


class State(StrEnum):
    """The states of a worker."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DISRUPTED = "Disrupted"


@dataclass(frozen=True, slots=True)
class PodIssue:
    """Why a pod waits or is disrupted, as the scheduler, the node or the API server reports it."""

    reason: str
    message: str
    subject: str = ""
    """The container that it is about, with its image."""


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
    """The size of the group for which it was created; 0 where its annotation was removed by hand."""
    phase: str
    """Pending, Running, Succeeded, Failed or Unknown."""
    node: str | None = None
    place: tuple[str, ...] = ()
    """Where its node is, as its labels and its node selector name that, the widest part first; empty where nothing is known."""
    ranks_ordered: bool = False
    """Whether its ranks wait for the order of workers, and follow it."""
    ip: str = ""
    """Its address, once it has one."""
    scheduled: bool = False
    scheduled_at: datetime | None = None
    """When it got its node; None where it has none, or it is not known."""
    ready: bool = False
    running: bool = False
    """Whether the main container runs."""
    running_since: datetime | None = None
    """By its node's clock."""
    ended: bool = False
    """Whether all its containers have exited. The node reports that a moment before it changes the phase."""
    exit: Exit | None = None
    """The exit of the main container, or of the init container that kept it from starting."""
    conditions: frozenset[str] = frozenset()
    """The types of the conditions that are True, without those that every pod has."""
    issue: PodIssue | None = None
    """Why it is not scheduled, or its containers do not start."""
    disruption: PodIssue | None = None
    """What has removed the pod, or has requested that: a deletion, an eviction, a preemption, a lost node."""
    disrupted_at: datetime | None = None
    """When that was; None where it is not known."""
    deletion_time: datetime | None = None
    """When its grace period ends or ended; set as soon as its deletion was requested."""
    stop_requested: bool = False
    """Whether its node was asked to stop its containers and to keep the pod."""
    clock_behind: bool = False
    """Whether its node's clock is behind that of the control plane, as far as the pod shows it."""
    removed: bool = False
    """Whether its deletion waits for a finalizer alone, and no longer for its node."""
    restartable: bool = False
    """Whether its node restarts the main container where the agent exits for that."""
    generation: int = 0
    """The generation of the job from which it was created; 0 where it is not known."""
    template_hash: str = ""
    """The hash of the template from which it was created; empty in a pod of an earlier release."""
    network: str = ""
    """The name and the digest of the network profile with which it was created; empty where it has none."""
    node_lost_at: datetime | None = None
    """When the control plane gave it up because its node is not ready; None where the node has reported it since."""
    init_container: str = ""
    """The init container that runs now, for which the others wait; empty where none does."""
    init_since: datetime | None = None
    """Since when that runs, by its node's clock."""
    idle: bool = False
    """Whether its agent shows that no rank runs in it any more. Only pods of other attempts have this."""
    recreated: int = 0
    """How often the pod was created again in its attempt, while the others went on."""
    container_restarts: int = 0
    """How often its node has restarted the main container."""
    gone: bool = False
    """Whether the pod does not exist any more: it stands for a worker whose success is stored."""

    @property
    def has_stopped(self) -> bool:
        """Whether no rank runs in the pod any more. Its other containers may run until they are killed."""
        return self.ended or self.exit is not None

    @property
    def state(self) -> State:
        """The state of the worker.

        The main container's exit decides, whatever the other containers do, unless a disruption of the pod caused it. A
        pod that failed without any container's exit never ran the program: its node rejected it.
        """
        if self.exit and not _caused_by_disruption(self):
            return State.SUCCEEDED if self.exit.code == 0 else State.FAILED
        if self.disruption or self.phase == "Failed":
            return State.DISRUPTED
        if self.phase == "Succeeded":
            return State.SUCCEEDED
        if self.running:
            return State.RUNNING
        return State.STARTING if self.scheduled else State.PENDING

    @property
    def slow_init_at(self) -> datetime | None:
        """When its init container counts as slow; None where none runs."""
        return None if self.init_since is None or self.ended else self.init_since + SLOW_INIT


def _caused_by_disruption(pod: PodView) -> bool:
    """Return whether a disruption of the pod caused the exit.

    Times have whole seconds and come from two clocks, the node's and the API server's. So an exit in the same second,
    or on a node whose clock is behind, counts as caused by the disruption. An exit by the signals of a deletion always
    does. An exit that the worker caused by its own use of resources never does.
    """
    if pod.exit is None or pod.disruption is None:
        return False
    doubt = (pod.exit.code in STOP_SIGNAL_CODES or pod.clock_behind) and pod.exit.reason not in CAUSED_BY_WORKER
    return doubt or pod.disrupted_at is None or pod.disrupted_at <= pod.exit.time


@dataclass(frozen=True, slots=True)
class RankProgress:
    """The progress of a rank, as its agent reports it."""

    rank: int
    step: int | None
    """The last step that it has completed; None where it reports its phase alone."""
    phase: str
    total_steps: int | None = None
    loss: float | None = None
    step_seconds: float | None = None
    """The usual duration of a step."""
    stack: tuple[str, ...] = ()
    """Its Python stack, the innermost frame first; reported while it hangs."""
    first: int | None = None
    """The first step that it has reported in this attempt, where its program uses our library."""
    compute_seconds: float | None = None
    """The part of a step in which it computes and does not wait for other ranks, where its program reports that."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """What else its program reports, by the names of `MeasuredProgress`."""
    blocked: str = ""
    """Why it cannot say where it is: `stopped` by a signal, or `uninterruptible` in the kernel."""


@dataclass(frozen=True, slots=True)
class FormedGroups:
    """The process groups that the programs of a worker have formed."""

    size: int
    """The ranks of the largest."""
    leaders: int
    """The processes of the worker that are rank 0 of a group of that size."""


@dataclass(frozen=True, slots=True)
class Network:
    """The network that NCCL took between workers."""

    uses_sockets: bool
    """Whether it is TCP."""
    name: str
    """NCCL's name of it."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The last progress report of a worker's agent."""

    attempt: int
    index: int
    """The worker's."""
    ranks: tuple[RankProgress, ...]
    at: datetime | None = field(default=None, compare=False)
    """When it was received, by the operator's clock and to the fraction of a second; None: now."""
    groups: FormedGroups | None = None
    """None where no program has formed a group, or it is not known."""
    network: Network | None = None
    """None in other workers than that of rank 0, or where it is not known."""
    torch_processes: int | None = None
    """How many programs of the worker have had torch loaded at the same time. None where it has one process, or it is not known."""
    preflight_seconds: float = 0.0
    """How long the comparison of nodes took before the ranks started."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """The last state that the agent of a worker has reported, and whether it is still connected."""

    attempt: int
    state: AgentState
    exit: Exit | None = None
    """The exit of the rank that failed."""
    reported_at: datetime | None = None
    """When it first reported this state."""
    since: datetime | None = None
    """Since when it has been connected without a break."""
    left_at: datetime | None = None
    """When its connection was lost; None while it is connected."""
    vanished: bool = False
    """Whether its connection was lost because its node did not answer any more."""
    leave: StopProgress | None = None
    """Its progress in a coordinated stop; None where its ranks cannot take part in one."""
    idle: bool = False
    """Whether none of its ranks does anything; known only where they report no progress."""
    prepared: bool = True
    """Whether the next start of its ranks is prepared as far as possible."""

    @property
    def connected(self) -> bool:
        """Whether the agent is connected and its container stays."""
        return self.left_at is None and self.state not in {AgentState.ENDED, AgentState.RESTARTING}
