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
        stall: seconds for which one checkpoint blocks training.
        between_failures: seconds from one failure to the next, on average.

    Raises:
        ValueError: one is not a positive number.
    """
    if not (0 < stall < math.inf and 0 < between_failures < math.inf):
        raise ValueError(f"stall and between_failures must be positive, got {stall} and {between_failures} seconds")
    if stall >= 2 * between_failures:
        return between_failures
    ratio = stall / (2 * between_failures)
    return math.sqrt(2 * stall * between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


@dataclass(frozen=True)
class SaveInterval:
    """When the next checkpoint is due. Set at most one field; with none, Daly's formula applies to the measured times.

    Attributes:
        steps: after each step that is a multiple of it.
        seconds: seconds between two checkpoints.
        overhead: largest share of the time for which checkpoints may block training: 0.01 for 1 %.

    Raises:
        ValueError: a number is not positive, or there are two.
    """

    steps: int | None = None
    seconds: float | None = None
    overhead: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are two rules for one thing: leave all but one out")
        for name, value in given.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive, got {value}")

    def interval(self, stall: float, age: float, failures: int) -> float:
        """Seconds from one checkpoint to the next, where no number of steps is set.

        Args:
            stall: seconds for which the last checkpoint blocked training; 0 before the first.
            age: seconds since the job started.
            failures: how often it failed in that time.
        """
        if self.seconds is not None:
            return self.seconds
        if self.overhead is not None:
            return max(LEAST_SECONDS, stall / self.overhead)
        if stall <= 0:
            return LEAST_SECONDS
        # One failure more, at the usual time: the first estimate, and the less it counts the more were seen.
        between = (age + USUAL_FAILURE_SECONDS) / (failures + 1)
        return min(max(daly(stall, between), LEAST_SECONDS), MOST_SECONDS)

    def due_at_step(self, step: int) -> bool:
        """Whether it is due after this step, whatever the time."""
        return self.steps is not None and step % self.steps == 0

    def due_by_time(self, elapsed: float, *, stall: float, age: float, failures: int) -> bool:
        """Whether it is time, `elapsed` seconds after the last one; never where it is due at certain steps."""
        return self.steps is None and elapsed >= self.interval(stall, age, failures)
