"""The outcome of an asynchronous save, as one process and as all processes see it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Outcome:
    """What one process knows of it.

    Attributes:
        wrong: why it is not in the store; "" where it is, or was not to be.
        behind: message if a later attempt has started; else "".
        memory_error: why it is not in memory; "" where it is, or was not to be.
        in_memory: whether it is in memory.
        silent: whether it, or an operation of the store, had no end in time, so that something of it may still be written.
        broken: whether the process group that it was written by is of no use any more.
    """

    wrong: str = ""
    behind: str = ""
    memory_error: str = ""
    in_memory: bool = False
    silent: bool = False
    broken: bool = False


def agreed(outcomes: Sequence[Outcome]) -> Outcome:
    """What all are to take for it, from what each knows, by rank: the worst of everything."""

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
