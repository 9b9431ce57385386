"""Work queue: each key is queued at most once and has at most one worker. Knows nothing about keys; starts no task."""

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
    """A scheduled call."""

    def cancel(self) -> object:
        """Cancel the call."""


class Timers(Protocol):
    """The part of an event loop that the queue needs; tests pass a fake clock."""

    def time(self) -> float:
        """Return monotonic seconds."""

    def call_at(self, when: float, callback: Callable[[], object]) -> Cancellable:
        """Schedule the callback for that time."""


class WorkQueue(Generic[K]):
    """A key is waiting (ready now), delayed (ready later), in work, or unknown.

    - Added while it waits: nothing changes. Added while in work: it waits again as soon as its worker returns it.
    - Delayed twice: the earlier time counts. Taking a key cancels its delay, since the reconcile that starts now sees
      the current state and returns itself when to run again.
    - After each failure its delay grows, and the token bucket limits the retries of all keys together.
    """

    def __init__(
        self,
        *,
        timers: Timers | None = None,
        backoff: Callable[[int], float] | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Without `timers` it must be created inside a running event loop, and uses that loop."""
        self._timers: Timers = timers if timers is not None else asyncio.get_running_loop()
        self._backoff = backoff if backoff is not None else Backoff(base=0.2, cap=60.0)
        self._bucket = TokenBucket(_RETRIES_PER_SECOND, _RETRY_BURST, self._timers.time)
        self._observer = observer if observer is not None else Observer()
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: dict[K, float] = {}  # time of addition, also of keys in work to be taken again; oldest first
        self._working: dict[K, float] = {}
        self._later: dict[K, tuple[float, Cancellable]] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        """Queue the key now."""
        if key in self._waiting:
            return
        self._waiting[key] = self._timers.time()
        self._observer.added()
        if key not in self._working:
            self._ready.put_nowait(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Queue the key after this many seconds, unless it is already delayed to an earlier time."""
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
        """Queue the key after the backoff that follows a failure."""
        self._failures[key] = self._failures.get(key, 0) + 1
        self._observer.retried()
        self.add_after(key, max(self._backoff(self._failures[key]), self._bucket.reserve()))

    def forget(self, key: K) -> None:
        """Reset the failures of the key after a success: its next failure counts as the first."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Return the consecutive failures of the key."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Wait for a key and take it. The caller must call `done` afterwards."""
        key = await self._ready.get()
        now = self._timers.time()
        self._observer.taken(now - self._waiting.pop(key))
        self._working[key] = now
        if key in self._later:
            self._later.pop(key)[1].cancel()
        return key

    def done(self, key: K) -> None:
        """Return a key that is no longer in work."""
        self._observer.finished(self._timers.time() - self._working.pop(key))
        if key in self._waiting:
            self._ready.put_nowait(key)

    @property
    def depth(self) -> int:
        """Keys that are ready and have no worker."""
        return self._ready.qsize()

    @property
    def idle(self) -> bool:
        """Whether no key is ready or in work (some may be delayed)."""
        return not self._waiting and not self._working

    def longest_wait(self) -> float:
        """Return the seconds for which the oldest key has been waiting; 0 where none waits."""
        # Keys in work that will be taken again are not stuck, only busy.
        return next((self._timers.time() - at for key, at in self._waiting.items() if key not in self._working), 0.0)

    def longest_work(self) -> float:
        """Return the seconds for which the slowest worker has been reconciling its key; 0 where none is."""
        return next((self._timers.time() - since for since in self._working.values()), 0.0)

    def _due(self, key: K) -> None:
        del self._later[key]
        self.add(key)
