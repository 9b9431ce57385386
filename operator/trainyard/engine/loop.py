"""Workers that take keys from the queue and reconcile them. An exception in a reconcile never stops a worker."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from trainyard.engine.observer import Observer, Result
from trainyard.engine.queue import WorkQueue
from trainyard.kube.errors import ApiError

K = TypeVar("K", bound=Hashable)

_LOG = logging.getLogger(__name__)


class ReconcileLoop(Generic[K]):
    """`reconcile` takes a key and returns when to reconcile it again: None (on the next change) or the seconds from
    now.

    A key whose reconcile raises is retried with exponential backoff. A cancelled reconcile gives its key back.
    """

    def __init__(
        self,
        queue: WorkQueue[K],
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        workers: int,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._workers = workers
        self._observer = observer if observer is not None else Observer()
        self._clock = clock
        self._last_errors: dict[K, str] = {}
        self.active = 0
        """Workers that reconcile a key now."""

    async def run(self) -> None:
        """Run the workers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"worker-{number}")

    async def process_next(self) -> K:
        """Wait for one key and reconcile it. A worker repeats this; tests call it directly."""
        key = await self._queue.get()
        self.active += 1
        started = self._clock()
        try:
            result = await self._reconcile_key(key)
        finally:
            self.active -= 1
            self._queue.done(key)
        self._observer.reconciled(result, self._clock() - started)
        return key

    async def _work(self) -> None:
        while True:
            await self.process_next()
            # A reconcile that has nothing to do does not await: a thousand in a row would block the event loop.
            await asyncio.sleep(0)

    async def _reconcile_key(self, key: K) -> Result:
        try:
            after = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - an error of one key must not stop the others
            self._log_error_once(key, error)
            self._queue.add_rate_limited(key)
            return Result.ERROR
        self._last_errors.pop(key, None)
        self._queue.forget(key)
        if after is None:
            return Result.SUCCESS
        self._queue.add_after(key, after)
        return Result.REQUEUE_AFTER

    def _log_error_once(self, key: K, error: Exception) -> None:
        """Log each distinct error of a key once until it succeeds: one bad object must not fill the log."""
        text = f"{type(error).__name__}: {error}"
        if self._last_errors.get(key) == text:
            _LOG.debug(f"reconcile failed again key={key} error={text!r}")
            return
        self._last_errors[key] = text
        # The message explains an error of the API server; anything else is a bug and needs its traceback.
        _LOG.error(
            f"reconcile failed, retrying with backoff key={key} error={text!r}",
            exc_info=None if isinstance(error, ApiError) else error,
        )
