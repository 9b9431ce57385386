"""How long to wait after the n-th failure in a row. Pure but for the random source that is passed in."""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays with jitter: `base` doubles with each failure up to `cap`, then a random part is taken off.

    Jitter only shortens, by up to half, so that `cap` is a promise and many waiters do not come back together.
    """

    base: float = 0.2
    """Seconds after the first failure, before jitter."""
    cap: float = 60.0
    """No delay is longer, in seconds."""
    random: Callable[[], float] = random.random
    """Uniform in [0, 1); a test passes a constant."""

    def __call__(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row (1 is the first)."""
        # Past 30 doublings every sensible base is above every sensible cap, and 2**n would overflow a float in the end.
        full = min(self.cap, self.base * 2.0 ** min(failures - 1, 30))
        return full * (1.0 - self.random() / 2.0)
