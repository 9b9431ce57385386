"""Run many similar calls with a slow start: an error that the first calls meet, the rest would meet too."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainyard.kube.errors import ApiError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The call succeeded."""

    value: T


@dataclass(frozen=True, slots=True)
class Failed:
    """The call failed, or its result is unknown (`error.status` 0)."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The call was not made because an earlier one failed."""


Outcome = Done[T] | Failed | NotStarted


async def slow_start(calls: Sequence[Callable[[], Awaitable[T]]], *, limit: int = 50) -> list[Outcome[T]]:
    """Make the calls in order, 1, 2, 4 … up to `limit` concurrently, and start no more once one has failed.

    An exhausted quota costs one failed call and not five hundred. Each success allows one more concurrent call, which
    doubles the concurrency with each round trip. Calls in flight are always awaited. Return the outcome of each call in
    the order of `calls`. An exception other than `ApiError` is raised after all calls in flight are done.
    """
    outcomes: list[Outcome[T]] = [NotStarted()] * len(calls)
    in_flight: dict[asyncio.Future[T], int] = {}
    # Not `asyncio.wait`, which visits all calls in flight each time one of them is done.
    finished: asyncio.Queue[asyncio.Future[T]] = asyncio.Queue()
    window, position, failed = 1, 0, False
    bug: BaseException | None = None
    try:
        while True:
            while not failed and position < len(calls) and len(in_flight) < window:
                started = asyncio.ensure_future(calls[position]())
                started.add_done_callback(finished.put_nowait)
                in_flight[started] = position
                position += 1
            if not in_flight:
                break
            for future in await _all_finished(finished):
                index = in_flight.pop(future)
                match future.exception():
                    case None:
                        outcomes[index] = Done(future.result())
                        window = min(limit, window + 1)
                    case ApiError() as error:
                        outcomes[index] = Failed(error)
                        failed = True
                    case error:
                        bug = bug or error
                        failed = True
    finally:
        # Calls are still in flight here only when this coroutine itself is cancelled.
        for future in in_flight:
            future.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)
    if bug is not None:
        raise bug
    return outcomes


async def _all_finished(finished: asyncio.Queue[asyncio.Future[T]]) -> list[asyncio.Future[T]]:
    """Wait for a finished call. Return it with all others that are finished by now, since one of them may have
    failed.
    """
    futures = [await finished.get()]
    futures += [finished.get_nowait() for _ in range(finished.qsize())]
    return futures
