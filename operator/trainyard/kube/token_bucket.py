"""A token bucket: a burst at once, then a constant rate. Pure: the clock is passed in."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial


class TokenBucket:
    """`burst` tokens at the start, `rate` new ones a second, never more than `burst`."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._filled_at = clock()

    def take(self) -> bool:
        """Take a token and return True, or return False where none is left."""
        self._fill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def reserve(self) -> float:
        """Take a token now or in the future. Return the seconds until it is available."""
        self._fill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now


class TokenBuckets:
    """A token bucket for each of up to `keys` keys. The one that was used longest ago is forgotten first."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float], keys: int) -> None:
        self._make = partial(TokenBucket, rate, burst, clock)
        self._keys = keys
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, key: str) -> bool:
        """Take a token of this key and return True, or return False where none is left."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = self._make()
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        return bucket.take()
