import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from trainyard.engine.batch import Done, Failed, NotStarted, slow_start
from trainyard.kube.errors import ApiError

QUOTA = ApiError(403, "Forbidden", "exceeded quota: pods")


class Server:
    """Answers in rounds: all calls under way at once, then the next. `rounds` is how many there were in each."""

    def __init__(self, failing: set[int] | None = None, crashing: set[int] | None = None) -> None:
        self.failing = failing or set()
        self.crashing = crashing or set()
        self.rounds: list[int] = []
        self.under_way: list[asyncio.Future[None]] = []

    def call(self, number: int) -> Callable[[], Awaitable[int]]:
        async def made() -> int:
            future = asyncio.get_running_loop().create_future()
            self.under_way.append(future)
            await future
            if number in self.failing:
                raise QUOTA
            if number in self.crashing:
                raise ZeroDivisionError
            return number

        return made

    async def answer(self) -> None:
        while True:
            for _ in range(4):  # until all that will be started has been
                await asyncio.sleep(0)
            if self.under_way:
                self.rounds.append(len(self.under_way))
            for future in self.under_way:
                future.set_result(None)
            self.under_way = []

    async def make(self, count: int, limit: int = 50) -> list[Done[int] | Failed | NotStarted]:
        answering = asyncio.create_task(self.answer())
        try:
            return await slow_start([self.call(number) for number in range(count)], limit=limit)
        finally:
            answering.cancel()


async def test_concurrency_doubles_up_to_the_limit() -> None:
    server = Server()
    outcomes = await server.make(200)
    assert outcomes == [Done(number) for number in range(200)]
    assert server.rounds == [1, 2, 4, 8, 16, 32, 50, 50, 37]


async def test_no_calls_give_no_outcomes() -> None:
    assert await slow_start([]) == []


async def test_no_call_starts_after_a_failure() -> None:
    server = Server(failing={0})
    assert await server.make(500) == [Failed(QUOTA), *[NotStarted()] * 499]
    assert server.rounds == [1]


async def test_calls_in_flight_are_awaited() -> None:
    server = Server(failing={4})
    outcomes = await server.make(20)
    assert outcomes == [
        *(Done(number) if number != 4 else Failed(QUOTA) for number in range(7)),
        *[NotStarted()] * 13,
    ]
    assert server.rounds == [1, 2, 4]


async def test_a_bug_is_raised_after_the_wait() -> None:
    server = Server(crashing={1})
    with pytest.raises(ZeroDivisionError):
        await server.make(20)
    assert server.rounds == [1, 2]
    assert server.under_way == []


async def test_first_of_several_bugs_is_raised() -> None:
    async def fails(error: Exception | None) -> None:
        if error:
            raise error

    bugs = (None, ValueError("first"), ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        await slow_start([partial(fails, error) for error in bugs])


async def test_the_limit_holds() -> None:
    server = Server()
    await server.make(10, limit=3)
    assert server.rounds == [1, 2, 3, 3, 1]


async def test_cancellation_reaches_the_calls() -> None:
    ended: list[str] = []

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    task = asyncio.create_task(slow_start([call, call]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


async def test_cancellation_waits_for_all_calls() -> None:
    ended: list[int] = []

    async def call(rounds: int) -> None:
        if not rounds:
            return
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(rounds):
                await asyncio.sleep(0)
            ended.append(rounds)

    task = asyncio.create_task(slow_start([partial(call, rounds) for rounds in (0, 1, 9)]))
    for _ in range(9):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [1, 9]
