"""Compute the checkpoint interval with the lowest cost. Pure.

Sources:
    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974).
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

USUAL_FAILURE_SECONDS = 3 * 3600.0
"""The seconds between two failures before any was observed: about what large clusters report (2.7 to 8 hours)."""
LEAST_SECONDS, MOST_SECONDS = 10.0, 3600.0


def daly(stall: float, between_failures: float) -> float:
    """Return the seconds of training between two checkpoints with the lowest total cost.

    Args:
        stall: the seconds for which one checkpoint blocks training.
        between_failures: the mean seconds between two failures.

    Raises:
        ValueError: a number is not positive.
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
        seconds: the seconds between two checkpoints.
        overhead: the largest share of the time for which checkpoints may block training: 0.01 for 1 %.

    Raises:
        ValueError: a number is not positive, or two are set.
    """

    steps: int | None = None
    seconds: float | None = None
    overhead: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are two rules for one thing: leave all but one out")
        for name, value in given.items():
            if not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise ValueError(f"{name} must be a positive number, got {value!r}")

    def interval(self, stall: float, age: float, failures: int) -> float:
        """Return the seconds between two checkpoints, if no number of steps is set.

        Args:
            stall: the seconds for which the last checkpoint blocked training; 0 before the first.
            age: the seconds since the job started.
            failures: the number of failures in that time.
        """
        if self.seconds is not None:
            return self.seconds
        if self.overhead is not None:
            return max(LEAST_SECONDS, stall / self.overhead)
        if stall <= 0:
            return LEAST_SECONDS
        # One more failure at the default rate: the first estimate, whose weight falls with each observed failure.
        between = (age + USUAL_FAILURE_SECONDS) / (failures + 1)
        return min(max(daly(stall, between), LEAST_SECONDS), MOST_SECONDS)

    def due_at_step(self, step: int) -> bool:
        """Return whether a checkpoint is due after this step, independent of the time."""
        return self.steps is not None and step % self.steps == 0

    def due_by_time(self, elapsed: float, *, stall: float, age: float, failures: int) -> bool:
        """Return whether a checkpoint is due `elapsed` seconds after the last one; never if it is due at certain steps."""
        return self.steps is None and elapsed >= self.interval(stall, age, failures)
