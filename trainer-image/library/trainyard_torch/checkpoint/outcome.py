"""What became of a checkpoint that was written beside the training, in the eyes of one process and of all. Pure."""

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
        behind: a later attempt has begun, in a sentence; else "".
        forgotten: why it is not in memory; "" where it is, or was not to be.
        remembered: whether it is in memory.
        silent: whether it, or an operation of the store, had no end in time, so that something of it may still be written.
        broken: whether the process group that it was written by is of no use any more.
    """

    wrong: str = ""
    behind: str = ""
    forgotten: str = ""
    remembered: bool = False
    silent: bool = False
    broken: bool = False


def agreed(words: Sequence[Outcome]) -> Outcome:
    """What all are to take for it, from what each knows, by rank: the worst of everything."""

    def first(texts: Sequence[str]) -> str:
        return next(filter(None, texts), "")

    return Outcome(
        wrong=first([word.wrong for word in words]),
        behind=first([word.behind for word in words]),
        forgotten=first([word.forgotten for word in words]),
        remembered=all(word.remembered for word in words),
        silent=any(word.silent for word in words),
        broken=any(word.broken for word in words),
    )
