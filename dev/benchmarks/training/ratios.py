"""How two things that were measured in turns compare. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from typing_extensions import override


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times one is the other.

    Attributes:
        value: of the medians.
        low: the least of any turn.
        high: the greatest.
    """

    value: float
    low: float
    high: float

    @override
    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio(one: Sequence[float], other: Sequence[float]) -> Ratio:
    """One by the other. Each has a figure for each turn, in the same order: those of a turn were measured after each other.

    Raises:
        ValueError: they are not as many, or none, or one of the other is not positive.
    """
    if not one or len(one) != len(other):
        raise ValueError(f"there must be a figure of both for each turn, and there are {len(one)} and {len(other)}")
    if min(other) <= 0:
        raise ValueError(f"a ratio needs positive figures, and there is {min(other)}")
    each = [mine / theirs for mine, theirs in zip(one, other, strict=True)]
    return Ratio(median(one) / median(other), min(each), max(each))
