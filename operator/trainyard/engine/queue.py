"""Keys that need a look, each at most once, each with at most one worker. Knows nothing of what a key means; starts no task."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from trainyard.engine.observer import Observer
from trainyard.kube.backoff import Backoff
from trainyard.kube.token_bucket import TokenBucket

K = TypeVar("K", bound=Hashable)

_RETRIES_PER_SECOND = 10.0
_RETRY_BURST = 100.0


class Cancellable(Protocol):
    """A call that is due later."""

    def cancel(self) -> object:
        """Do not make it."""


class Timers(Protocol):
    """The part of an event loop that the queue needs; tests pass a clock of their own."""

    def time(self) -> float:
        """Seconds, monotonic."""

    def call_at(self, when: float, callback: Callable[[], object]) -> Cancellable:
        """Call back at that time."""


class WorkQueue(Generic[K]):
    """A key is waiting (ready now), put off (ready later), in work, or unknown.

    - Added while it waits: nothing changes. Added while in work: it waits again as soon as it is done.
    - Put off twice: the earlier time counts. A key that is taken is no longer put off, since the pass that begins now sees
      all there is and says itself when to come back.
    - After a failure it is put off for longer each time, and all keys together no more often than the bucket allows.
    """

    def __init__(
        self,
        *,
        timers: Timers | None = None,
        backoff: Callable[[int], float] | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Without `timers` it is made inside a running event loop, and uses that."""
        self._timers: Timers = timers if timers is not None else asyncio.get_running_loop()
        self._backoff = backoff if backoff is not None else Backoff(base=0.2, cap=60.0)
        self._bucket = TokenBucket(_RETRIES_PER_SECOND, _RETRY_BURST, self._timers.time)
        self._observer = observer if observer is not None else Observer()
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: dict[K, float] = {}  # since when, also of those in work that are to be done again; oldest first
        self._working: dict[K, float] = {}
        self._later: dict[K, tuple[float, Cancellable]] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        """The key needs a look now."""
        if key in self._waiting:
            return
        self._waiting[key] = self._timers.time()
        self._observer.added()
        if key not in self._working:
            self._ready.put_nowait(key)

    def add_after(self, key: K, seconds: float) -> None:
        """The key needs a look in so many seconds, unless it is put off to an earlier time already."""
        if seconds <= 0:
            self.add(key)
            return
        when = self._timers.time() + seconds
        if key in self._later:
            due, timer = self._later[key]
            if due <= when:
                return
            timer.cancel()
        self._later[key] = when, self._timers.call_at(when, lambda: self._due(key))

    def add_rate_limited(self, key: K) -> None:
        """The key needs another look after a failure."""
        self._failures[key] = self._failures.get(key, 0) + 1
        self._observer.retried()
        self.add_after(key, max(self._backoff(self._failures[key]), self._bucket.reserve()))

    def forget(self, key: K) -> None:
        """The key is well: its next failure counts as the first."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Failures in a row."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Wait for a key and take it. Whoever takes it calls `done`."""
        key = await self._ready.get()
        now = self._timers.time()
        self._observer.took(now - self._waiting.pop(key))
        self._working[key] = now
        if key in self._later:
            self._later.pop(key)[1].cancel()
        return key

    def done(self, key: K) -> None:
        """The key is no longer in work."""
        self._observer.finished(self._timers.time() - self._working.pop(key))
        if key in self._waiting:
            self._ready.put_nowait(key)

    @property
    def depth(self) -> int:
        """Keys that are ready and have no worker."""
        return self._ready.qsize()

    @property
    def idle(self) -> bool:
        """Nothing is ready or in work (some may be put off)."""
        return not self._waiting and not self._working

    def longest_wait(self) -> float:
        """Seconds for which the first in the queue has been waiting; 0 where none is."""
        # Those in work that are to be done again are not stuck, only busy.
        return next((self._timers.time() - at for key, at in self._waiting.items() if key not in self._working), 0.0)

    def longest_work(self) -> float:
        """Seconds for which the slowest worker has been at its key; 0 where none is."""
        return next((self._timers.time() - since for since in self._working.values()), 0.0)

    def _due(self, key: K) -> None:
        del self._later[key]
        self.add(key)
