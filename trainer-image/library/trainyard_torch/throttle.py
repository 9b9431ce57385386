"""How often all processes of a training ask each other something. Pure: the clock is a parameter."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

QUESTION_SECONDS = 0.1
MAX_SKIPPED_STEPS = 20
"""Steps, also where they are shorter: they may become long ones."""


class Throttle:
    """Leaves questions out where steps are short: an exchange, of however few bytes, takes a tenth of a millisecond.

    All processes leave out the same ones: with each answer, which is the same on all, goes how many steps are left out after it.

    Args:
        seconds: about what may pass from one question to the next.
        clock: seconds, that never go back.
    """

    def __init__(self, seconds: float = QUESTION_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._left = self._steps = 0
        self._since = clock()

    def due(self) -> bool:
        """A step is done. Whether all ask after it."""
        self._steps += 1
        if not self._left:
            return True
        self._left -= 1
        return False

    def proposal(self) -> int:
        """How many steps may be left out, as it seems here; to be asked with each question."""
        now = self._clock()
        fit = self._seconds * self._steps / max(now - self._since, 1e-9)
        self._steps, self._since = 0, now
        return max(0, min(int(fit) - 1, MAX_SKIPPED_STEPS))

    def agree(self, steps: int) -> None:
        """Set how many of the next steps are skipped, as all processes have agreed."""
        self._left = steps
