"""Limit how often the processes of a training exchange a vote. Pure: the clock is a parameter."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

QUESTION_SECONDS = 0.1
MAX_SKIPPED_STEPS = 20
"""The most steps between two votes: short steps may become long ones."""


class Throttle:
    """Skips votes if steps are short: each collective takes a tenth of a millisecond, however few its bytes.

    All processes skip the same votes: each result, which is the same on all, includes how many steps are skipped after it.

    Args:
        seconds: the approximate time between two votes.
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, seconds: float = QUESTION_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._left = self._steps = 0
        self._since = clock()

    def due(self) -> bool:
        """Record a finished step. Return whether all processes vote after it."""
        self._steps += 1
        if not self._left:
            return True
        self._left -= 1
        return False

    def proposal(self) -> int:
        """Return how many steps this process would skip, to be sent with each vote."""
        now = self._clock()
        fit = self._seconds * self._steps / max(now - self._since, 1e-9)
        self._steps, self._since = 0, now
        return max(0, min(int(fit) - 1, MAX_SKIPPED_STEPS))

    def agree(self, steps: int) -> None:
        """Set how many of the next steps are skipped, as all processes have agreed."""
        self._left = steps
