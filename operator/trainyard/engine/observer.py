"""Callbacks of the queue and the loop. `queue_metrics.py` turns them into metrics."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """The result of a reconcile, in controller-runtime's terms."""

    SUCCESS = "success"
    REQUEUE_AFTER = "requeue_after"
    ERROR = "error"


def _nothing(*_: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """One callback for each step in the life of a key; each is optional."""

    added: Callable[[], None] = _nothing
    """A key was added to the queue."""
    retried: Callable[[], None] = _nothing
    """A key was delayed after a failure."""
    taken: Callable[[float], None] = _nothing
    """A worker took a key that had been ready for this many seconds."""
    finished: Callable[[float], None] = _nothing
    """A worker returned a key after this many seconds."""
    reconciled: Callable[[Result, float], None] = _nothing
    """A reconcile finished after this many seconds."""
