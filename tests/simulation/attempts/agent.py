"""The true state of an agent, whether the operator knows it or not."""

from dataclasses import dataclass
from datetime import datetime

from trainyard.api.agent_protocol import AgentState, StopProgress
from trainyard.domain.state.termination import Exit


@dataclass(slots=True)
class Agent:
    """One, as it is: what it knows, and what runs below it."""

    attempt: int
    state: AgentState
    ranks: int | None  # the attempt whose ranks run
    size: int = 0  # the group size that they received
    rank: int | None = None
    """Its place in the order of ranks in the last attempt that it began."""
    begun: int = 0  # that attempt
    has_run: bool = False
    restarted: bool = False  # whether its container is not the first of its pod, and has not run since
    exit: Exit | None = None
    stubborn: bool = False  # whether its ranks do not exit when they are asked to
    leave: StopProgress | None = None
    """How far its ranks are on the way to an end together with all others; None where they take no part."""
    passed: int = -1  # the last step that its ranks have passed
    asked_at: datetime | None = None
    """Since when they wait for the step after which they end."""
    replaced_at: datetime | None = None  # since when it knows that another has its place
