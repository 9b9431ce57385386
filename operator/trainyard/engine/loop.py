"""Workers that take keys from the queue and make passes over them. A pass may do anything; a worker never dies of it."""

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
    """`reconcile` is told a key and answers when to look again: None (when something changes) or in so many seconds.

    An exception means: again, later each time. A pass that is cancelled is cancelled, and its key is given back.
    """

    def __init__(
        self,
        queue: WorkQueue[K],
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = 8,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._workers = workers
        self._observer = observer if observer is not None else Observer()
        self._clock = clock
        self._told: dict[K, str] = {}
        self.active = 0
        """Workers that are in a pass now."""

    async def run(self) -> None:
        """Work for ever, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"worker-{number}")

    async def process_next(self) -> K:
        """Wait for one key and make one pass over it. What a worker does again and again; tests call it by hand."""
        key = await self._queue.get()
        self.active += 1
        started = self._clock()
        try:
            result = await self._pass(key)
        finally:
            self.active -= 1
            self._queue.done(key)
        self._observer.passed(result, self._clock() - started)
        return key

    async def _work(self) -> None:
        while True:
            await self.process_next()
            # A pass in which nothing is to be done does not await: a thousand of them in a row would keep all others waiting.
            await asyncio.sleep(0)

    async def _pass(self, key: K) -> Result:
        try:
            after = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - one key's trouble must not stop the others
            self._complain(key, error)
            self._queue.add_rate_limited(key)
            return Result.ERROR
        self._told.pop(key, None)
        self._queue.forget(key)
        if after is None:
            return Result.SUCCESS
        self._queue.add_after(key, after)
        return Result.REQUEUE_AFTER

    def _complain(self, key: K, error: Exception) -> None:
        """Each trouble of a key once, until the key is well again: a poisoned object must not fill the log."""
        text = f"{type(error).__name__}: {error}"
        if self._told.get(key) == text:
            _LOG.debug(f"{key}: again {text}")
            return
        self._told[key] = text
        # A refusal by the API server is explained by its message; anything else is a bug and needs its place.
        _LOG.error(
            f"{key}: the pass failed and will be tried again: {text}",
            exc_info=None if isinstance(error, ApiError) else error,
        )
