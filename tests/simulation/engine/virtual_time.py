"""Time that passes only where nothing is left to do, and an event loop on it.

The loop can be left for dead between any two callbacks.

The order of everything is fixed: callbacks in the order in which they were asked for, timers by their time and then in that order.
Without threads, sockets or a real clock. Knows nothing of what runs on it.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from typing_extensions import override

T = TypeVar("T")

EPOCH = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)

MOST = 20_000
"""More callbacks than any healthy program makes at one time: it runs in circles."""
_ROUNDS_OF_GOODBYE = 3


class Timer:
    """A call that is due."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Do not make it."""
        self.cancelled = True


class Time:
    """The one clock, in seconds, and what is due on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def of_day(self, skew: float = 0.0) -> datetime:
        """The time of day in whole seconds, on a clock that is wrong by `skew` seconds."""
        return EPOCH + timedelta(seconds=int(self.now + skew))

    def seconds_of_day(self, skew: float = 0.0) -> float:
        """The same in seconds since 1970, with their fraction."""
        return EPOCH.timestamp() + self.now + skew

    def at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call back at that time."""
        timer = Timer(callback)
        heapq.heappush(self._due, (max(when, self.now), next(self._numbers), timer))
        return timer

    def after(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call back in so many seconds."""
        return self.at(self.now + seconds, callback)

    def jump(self, end: float) -> bool:
        """Go on to what is due next and do it, but not past `end`. False: nothing is due until then, and it is `end` now."""
        due = self._due
        while due and due[0][0] <= end:
            when, _, timer = heapq.heappop(due)
            if not timer.cancelled:
                self.now = when
                timer.callback()
                return True
        self.now = max(self.now, end)
        return False


class Handle:
    """A callback of a loop, with the context that it belongs to."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        self._callback = callback
        self._args = args
        self._context = context if context is not None else copy_context()
        self._cancelled = False

    def cancel(self) -> None:
        """Do not call it."""
        self._cancelled = True

    def cancelled(self) -> bool:
        """Whether it will not be called."""
        return self._cancelled

    def run(self) -> None:
        """Call it."""
        if not self._cancelled:
            self._context.run(self._callback, *self._args)


class Loop(asyncio.AbstractEventLoop):
    """As much of an event loop as tasks, futures, locks and sleeps need. `run` makes the given number of callbacks."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._ready: deque[Handle] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.dead = False

    @property
    def busy(self) -> bool:
        """Whether there is a callback to make now."""
        return bool(self._ready)

    def run(self, most: int) -> int:
        """Make the callbacks that are to be made now, `most` of them at most. How many it were."""
        made = 0
        asyncio._set_running_loop(self)
        try:
            while self._ready and made < most:
                made += 1
                self._ready.popleft().run()
        finally:
            asyncio._set_running_loop(None)
        return made

    def within(self, function: Callable[[], T]) -> T:
        """Call a function that expects to be called by this loop."""
        asyncio._set_running_loop(self)
        try:
            return function()
        finally:
            asyncio._set_running_loop(None)

    def kill(self) -> None:
        """Whatever runs here is no more. What it does on its way out it does in a void: nothing waits or answers any longer."""
        self.dead = True
        for _ in range(_ROUNDS_OF_GOODBYE):
            for task in [*self._tasks]:
                task.cancel()
            self.run(MOST)
        left = [task.get_name() for task in self._tasks]
        assert not left, f"these tasks do not end when they are cancelled: {left}"

    # What asyncio asks of a loop.

    @override
    def time(self) -> float:
        return self._time.now

    @override
    def get_debug(self) -> bool:
        return False

    @override
    def is_running(self) -> bool:
        return not self.dead

    @override
    def is_closed(self) -> bool:
        return False

    @override
    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    @override
    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        handle = Handle(callback, args, context)

        def due() -> None:
            if not self.dead:
                self._ready.append(handle)

        return self._time.at(when, due)

    @override
    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        return self.call_at(self._time.now + delay, callback, *args, context=context)

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    @override
    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Complaints of asyncio's own come when garbage is collected, which has no fixed time: they are not listened to."""
