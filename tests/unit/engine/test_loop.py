import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.support.timers import FakeTimers
from tests.support.waiting import until
from trainyard.engine.loop import ReconcileLoop
from trainyard.engine.observer import Observer, Result
from trainyard.engine.queue import WorkQueue
from trainyard.kube.errors import ApiError

Reconcile = Callable[[str], Awaitable[float | None]]


@contextlib.asynccontextmanager
async def running(queue: WorkQueue[str], reconcile: Reconcile, workers: int = 4) -> AsyncIterator[ReconcileLoop[str]]:
    loop = ReconcileLoop(queue, reconcile, workers=workers)
    task = asyncio.create_task(loop.run())
    try:
        yield loop
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def queue(timers: FakeTimers) -> WorkQueue[str]:
    return WorkQueue(timers=timers)


async def test_none_waits_for_the_next_change(queue: WorkQueue[str], timers: FakeTimers) -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)

    loop = ReconcileLoop(queue, reconcile, workers=8)
    queue.add("a")
    assert await loop.process_next() == "a"
    timers.advance(10_000)
    assert queue.idle
    assert seen == ["a"]


async def test_number_requeues_after_seconds(queue: WorkQueue[str], timers: FakeTimers) -> None:
    async def reconcile(key: str) -> float:
        return 30

    loop = ReconcileLoop(queue, reconcile, workers=8)
    queue.add("a")
    await loop.process_next()
    timers.advance(29)
    assert queue.depth == 0
    timers.advance(1)
    assert queue.depth == 1


async def test_failure_retries_with_growing_backoff(queue: WorkQueue[str], timers: FakeTimers) -> None:
    well = False

    async def reconcile(key: str) -> None:
        if not well:
            raise ApiError(503, "ServiceUnavailable", "not now")

    loop = ReconcileLoop(queue, reconcile, workers=8)
    queue.add("a")
    for failures in (1, 2, 3):
        await loop.process_next()
        assert queue.failures("a") == failures
        timers.advance(60)
    well = True
    await loop.process_next()
    assert queue.failures("a") == 0
    assert queue.idle


async def test_bug_is_logged_once_with_traceback(
    queue: WorkQueue[str], timers: FakeTimers, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)
        if key == "poison":
            raise ZeroDivisionError("a bug")

    async with running(queue, reconcile, workers=1):
        queue.add("poison")
        for number in range(3):
            queue.add(f"job-{number}")
            await until(lambda: queue.idle)
            timers.advance(60)
        await until(lambda: queue.idle)
    assert {"job-0", "job-1", "job-2"} < set(seen)
    assert seen.count("poison") == 4
    observed = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(observed) == 1
    assert observed[0].exc_info is not None
    assert "poison" in observed[0].message


async def test_api_error_is_logged_without_traceback(queue: WorkQueue[str], caplog: pytest.LogCaptureFixture) -> None:
    async def reconcile(key: str) -> None:
        raise ApiError(409, "Conflict", "somebody wrote in between")

    loop = ReconcileLoop(queue, reconcile, workers=8)
    queue.add("a")
    await loop.process_next()
    assert [record.exc_info for record in caplog.records] == [None]
    assert "somebody wrote in between" in caplog.text


async def test_keys_run_concurrently_but_never_one_twice(queue: WorkQueue[str]) -> None:
    gate = asyncio.Event()
    inside: list[str] = []
    most = 0

    async def reconcile(key: str) -> None:
        nonlocal most
        assert key not in inside
        inside.append(key)
        most = max(most, len(inside))
        await gate.wait()
        inside.remove(key)

    async with running(queue, reconcile, workers=3) as loop:
        for key in "abcd":
            queue.add(key)
        await until(lambda: loop.active == 3)
        queue.add("a")
        gate.set()
        await until(lambda: queue.idle)
    assert most == 3


async def test_cancellation_returns_the_key(queue: WorkQueue[str]) -> None:
    async def reconcile(key: str) -> None:
        await asyncio.Event().wait()

    async with running(queue, reconcile) as loop:
        queue.add("a")
        await until(lambda: loop.active == 1)
    assert loop.active == 0
    assert queue.idle


async def test_each_reconcile_is_observed(queue: WorkQueue[str]) -> None:
    observed: list[Result] = []

    async def reconcile(key: str) -> float | None:
        if key == "error":
            raise ValueError(key)
        return 5 if key == "after" else None

    loop = ReconcileLoop(
        queue, reconcile, workers=8, observer=Observer(reconciled=lambda result, _: observed.append(result))
    )
    for key in ("fine", "after", "error"):
        queue.add(key)
        await loop.process_next()
    assert observed == [Result.SUCCESS, Result.REQUEUE_AFTER, Result.ERROR]
