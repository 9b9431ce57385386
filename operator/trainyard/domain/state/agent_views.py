"""What the agents of workers report: the progress of their ranks, and their own state. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from trainyard.api.agent_protocol import AgentState, StopProgress
from trainyard.domain.state.termination import Exit


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
    prepared: bool = True
    """Whether the next start of its ranks is prepared as far as possible."""

    @property
    def connected(self) -> bool:
        """Whether the agent is connected and its container stays."""
        return self.left_at is None and self.state not in {AgentState.ENDED, AgentState.RESTARTING}
