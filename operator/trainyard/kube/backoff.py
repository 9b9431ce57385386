"""Delay after the n-th consecutive failure. Pure: the random source is passed in."""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter: `base` doubles with each failure up to `cap`, then a random part is subtracted.

    Jitter shortens a delay by up to half, so `cap` is a true maximum and many waiters do not retry together.
    """

    base: float = 0.2
    """Seconds after the first failure, before jitter."""
    cap: float = 60.0
    """Maximum delay in seconds."""
    random: Callable[[], float] = random.random
    """Uniform in [0, 1); a test passes a constant."""

    def __call__(self, failures: int) -> float:
        """Return the seconds to wait after this many consecutive failures (1 is the first)."""
        # After 30 doublings every sensible base exceeds every sensible cap; without a limit 2**n would overflow a
        # float.
        full = min(self.cap, self.base * 2.0 ** min(failures - 1, 30))
        return full * (1.0 - self.random() / 2.0)
