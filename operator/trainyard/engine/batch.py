"""Many calls of one sort, carefully at first: what the first ones meet, the rest would meet too. Decides nothing else."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainyard.kube.errors import ApiError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The call was answered."""

    value: T


@dataclass(frozen=True, slots=True)
class Failed:
    """The call was refused, or nobody knows what became of it (`error.status` 0)."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class NotStarted:
    """An earlier call failed, so this one was not made."""


Outcome = Done[T] | Failed | NotStarted


async def slow_start(calls: Sequence[Callable[[], Awaitable[T]]], *, limit: int = 50) -> list[Outcome[T]]:
    """Make the calls in order, 1, 2, 4 … up to `limit` at a time, and none any more once one has failed.

    A quota that is used up costs one refusal and not five hundred. Each success makes room for one call more, which doubles
    the number under way with each round trip. Those under way are always waited for. What happened to each call comes
    back in their order; an exception that is no `ApiError` is raised, after the wait.
    """
    outcomes: list[Outcome[T]] = [NotStarted()] * len(calls)
    under_way: dict[asyncio.Future[T], int] = {}
    # Not `asyncio.wait`, which looks at all that are under way each time that one of them ends.
    finished: asyncio.Queue[asyncio.Future[T]] = asyncio.Queue()
    crash: BaseException | None = None
    window, position, going = 1, 0, True
    try:
        while True:
            while going and position < len(calls) and len(under_way) < window:
                begun = asyncio.ensure_future(calls[position]())
                begun.add_done_callback(finished.put_nowait)
                under_way[begun] = position
                position += 1
            if not under_way:
                break
            ended = [await finished.get()]
            # All that have ended by now are looked at before another is begun: one of them may have failed.
            ended += [finished.get_nowait() for _ in range(finished.qsize())]
            for future in ended:
                place = under_way.pop(future)
                match future.exception():
                    case None:
                        outcomes[place] = Done(future.result())
                        window = min(limit, window + 1)
                    case ApiError() as error:
                        outcomes[place] = Failed(error)
                        going = False
                    case error:
                        crash = crash or error
                        going = False
    finally:
        # Reached with calls under way only when this is cancelled itself.
        for future in under_way:
            future.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    if crash is not None:
        raise crash
    return outcomes
