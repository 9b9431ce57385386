"""The progress that the agents of workers report. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


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
class WorkerReport:
    """The last progress report of a worker's agent."""

    attempt: int
    index: int
    """The worker's."""
    ranks: tuple[RankProgress, ...]
    at: datetime | None = field(default=None, compare=False)
    """When it was received, by the operator's clock and to the fraction of a second; None: now."""
