"""A fake clock with timers, advanced by tests."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, order=True)
class FakeTimer:
    """A scheduled call, ordered by time, then by order of scheduling."""

    when: float
    number: int
    callback: Callable[[], object] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class FakeTimers:
    """In place of an event loop's clock and timers (`trainyard.engine.queue.Timers`); also a plain clock:
    `timers.time`.
    """

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._due: list[FakeTimer] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], object]) -> FakeTimer:
        timer = FakeTimer(when, next(self._numbers), callback)
        heapq.heappush(self._due, timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass; what falls due meanwhile is called in its order, at its time."""
        end = self._now + seconds
        while self._due and self._due[0].when <= end:
            timer = heapq.heappop(self._due)
            self._now = max(self._now, timer.when)
            if not timer.cancelled:
                timer.callback()
        self._now = end

    def next_due(self) -> float | None:
        """Seconds until the next call, or None. A simulation jumps there."""
        while self._due and self._due[0].cancelled:
            heapq.heappop(self._due)
        return max(0.0, self._due[0].when - self._now) if self._due else None
