"""What the queue and the loop tell of themselves. Does nothing with it: `metrics.py` makes figures of it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """How a pass ended, in controller-runtime's words."""

    SUCCESS = "success"
    REQUEUE_AFTER = "requeue_after"
    ERROR = "error"


def _nothing(*_: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Told of each step in the life of a key; who has no interest in a step leaves it out."""

    added: Callable[[], None] = _nothing
    """A key came into the queue."""
    retried: Callable[[], None] = _nothing
    """A key was put off after a failure."""
    took: Callable[[float], None] = _nothing
    """A worker took a key that had been ready for so many seconds."""
    finished: Callable[[float], None] = _nothing
    """A worker gave a key back after so many seconds."""
    passed: Callable[[Result, float], None] = _nothing
    """A pass ended after so many seconds."""
