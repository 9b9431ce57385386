"""How often a checkpoint is worth its price. Pure.

Sources:
    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974).
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

USUAL_FAILURE_SECONDS = 3 * 3600.0
"""Between two failures, before any was seen: about what large clusters report (2.7 to 8 hours)."""
LEAST_SECONDS, MOST_SECONDS = 10.0, 3600.0


def daly(stall: float, between_failures: float) -> float:
    """Seconds of training from one checkpoint to the next that cost least in all.

    Args:
        stall: seconds for which training stands still for one checkpoint.
        between_failures: seconds from one failure to the next, on average.

    Raises:
        ValueError: one is not a positive number.
    """
    if not (0 < stall < math.inf and 0 < between_failures < math.inf):
        raise ValueError(f"stall and between_failures must be positive, and are {stall} and {between_failures} seconds")
    if stall >= 2 * between_failures:
        return between_failures
    ratio = stall / (2 * between_failures)
    return math.sqrt(2 * stall * between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


@dataclass(frozen=True)
class Due:
    """When the next checkpoint is due. Exactly one of the three; with none, by Daly's formula from what is measured.

    Attributes:
        steps: after each step that is a multiple of it.
        seconds: each so many seconds.
        share: so that training stands still for it at most this share of the time, 0.01 for 1 %.

    Raises:
        ValueError: a number is not positive, or there are two.
    """

    steps: int | None = None
    seconds: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are two rules for one thing: leave all but one out")
        for name, value in given.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive, and is {value}")

    def interval(self, stall: float, age: float, failures: int) -> float:
        """Seconds from one checkpoint to the next, where no number of steps is set.

        Args:
            stall: seconds for which training stood still for the last checkpoint; 0 before the first.
            age: seconds since the job began.
            failures: how often it failed in that time.
        """
        if self.seconds is not None:
            return self.seconds
        if self.share is not None:
            return max(LEAST_SECONDS, stall / self.share)
        if stall <= 0:
            return LEAST_SECONDS
        # One failure more, at the usual time: the first estimate, and the less it counts the more were seen.
        between = (age + USUAL_FAILURE_SECONDS) / (failures + 1)
        return min(max(daly(stall, between), LEAST_SECONDS), MOST_SECONDS)

    def at(self, step: int) -> bool:
        """Whether it is due after this step, whatever the time."""
        return self.steps is not None and step % self.steps == 0

    def by(self, elapsed: float, *, stall: float, age: float, failures: int) -> bool:
        """Whether it is time, `elapsed` seconds after the last one; never where it is due at certain steps."""
        return self.steps is None and elapsed >= self.interval(stall, age, failures)
