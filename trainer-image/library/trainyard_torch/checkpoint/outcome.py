"""The outcome of an asynchronous save, as one process and as all processes see it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Outcome:
    """The outcome on one process.

    Attributes:
        wrong: why the checkpoint is not in the store; "" if it is, or was not meant to be.
        behind: the message if a later attempt has started; else "".
        memory_error: why it is not in memory; "" if it is, or was not meant to be.
        in_memory: whether it is in memory.
        silent: whether the save or a store operation timed out, so that parts may still be written.
        broken: whether its process group is unusable.
    """

    wrong: str = ""
    behind: str = ""
    memory_error: str = ""
    in_memory: bool = False
    silent: bool = False
    broken: bool = False


def agreed(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the common outcome of all processes from their own outcomes by rank: the worst of each value."""

    def first(texts: Sequence[str]) -> str:
        return next(filter(None, texts), "")

    return Outcome(
        wrong=first([outcome.wrong for outcome in outcomes]),
        behind=first([outcome.behind for outcome in outcomes]),
        memory_error=first([outcome.memory_error for outcome in outcomes]),
        in_memory=all(outcome.in_memory for outcome in outcomes),
        silent=any(outcome.silent for outcome in outcomes),
        broken=any(outcome.broken for outcome in outcomes),
    )
