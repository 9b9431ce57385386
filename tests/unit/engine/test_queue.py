"""The work queue on a fake clock."""

import asyncio

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.timers import FakeTimers
from trainyard.engine.observer import Observer
from trainyard.engine.queue import WorkQueue
from trainyard.kube.backoff import Backoff


@pytest.fixture
def queue(timers: FakeTimers) -> WorkQueue[str]:
    return WorkQueue(timers=timers, backoff=Backoff(base=0.2, cap=60, random=lambda: 0.0))


async def take(queue: WorkQueue[str]) -> str:
    assert queue.depth, "nothing is ready"
    return await queue.get()


async def test_a_key_waits_only_once(queue: WorkQueue[str]) -> None:
    queue.add("a")
    queue.add("b")
    queue.add("a")
    assert queue.depth == 2
    assert [await take(queue), await take(queue)] == ["a", "b"]
    assert queue.depth == 0


async def test_key_added_while_in_work_is_requeued(queue: WorkQueue[str]) -> None:
    queue.add("a")
    await take(queue)
    queue.add("a")
    queue.add("a")
    assert queue.depth == 0, "it is in work"
    assert not queue.idle
    queue.done("a")
    assert queue.depth == 1
    await take(queue)
    queue.done("a")
    assert queue.idle


async def test_get_waits_for_a_key(queue: WorkQueue[str]) -> None:
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.add("a")
    assert await waiting == "a"


async def test_cancelled_worker_loses_no_key(queue: WorkQueue[str]) -> None:
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await take(queue) == "a"


@pytest.mark.parametrize(
    ("delays", "ready_after"), [([10, 5], 5), ([5, 10], 5), ([5, 5], 5), ([3, 9, 1], 1), ([0, 7], 0), ([-1], 0)]
)
async def test_earliest_delay_counts(
    queue: WorkQueue[str], timers: FakeTimers, delays: list[float], ready_after: float
) -> None:
    for delay in delays:
        queue.add_after("a", delay)
    if ready_after:
        timers.advance(ready_after - 0.01)
        assert queue.depth == 0
        timers.advance(0.01)
    assert await take(queue) == "a"
    queue.done("a")
    timers.advance(100)
    assert queue.idle, "once is enough"


async def test_taking_a_key_cancels_its_delay(queue: WorkQueue[str], timers: FakeTimers) -> None:
    queue.add_after("a", 5)
    queue.add("a")
    await take(queue)
    queue.add_after("a", 50)
    queue.done("a")
    timers.advance(49)
    assert queue.depth == 0
    timers.advance(1)
    assert queue.depth == 1


async def test_key_due_while_in_work_is_requeued(queue: WorkQueue[str], timers: FakeTimers) -> None:
    queue.add("a")
    await take(queue)
    queue.add_after("a", 1)
    timers.advance(2)
    assert queue.depth == 0
    queue.done("a")
    assert queue.depth == 1


async def test_backoff_of_a_key_grows(queue: WorkQueue[str], timers: FakeTimers) -> None:
    delays = []
    for _ in range(12):
        queue.add_rate_limited("a")
        delays.append(timers.next_due())
        timers.advance(60)
        await take(queue)
        queue.done("a")
    assert delays == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60, 60, 60])
    assert queue.failures("a") == 12
    queue.forget("a")
    queue.add_rate_limited("a")
    assert timers.next_due() == pytest.approx(0.2)


async def test_retries_of_all_keys_share_a_limit(queue: WorkQueue[str], timers: FakeTimers) -> None:
    for number in range(200):
        queue.add_rate_limited(f"job-{number}")
    timers.advance(0.2)
    assert queue.depth == 102, "a burst of 100, and ten a second of the others"
    timers.advance(1)
    assert queue.depth == 112
    timers.advance(10)
    assert queue.depth == 200


@pytest.mark.parametrize("failures", [1, 5, 100, 5000])
@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
def test_jitter_shortens_by_at_most_half(failures: int, random: float) -> None:
    full = Backoff(random=lambda: 0.0)(failures)
    assert full / 2 <= Backoff(random=lambda: random)(failures) <= full <= 60


async def test_longest_wait_and_longest_work(queue: WorkQueue[str], timers: FakeTimers) -> None:
    assert (queue.longest_wait(), queue.longest_work()) == (0, 0)
    queue.add("a")
    timers.advance(3)
    queue.add("b")
    timers.advance(4)
    assert queue.longest_wait() == 7
    await take(queue)
    assert queue.longest_wait() == 4
    timers.advance(2)
    queue.add("a")
    assert (queue.longest_wait(), queue.longest_work()) == (6, 2)


async def test_each_step_is_observed(timers: FakeTimers) -> None:
    observed: list[tuple[str, float]] = []
    observer = Observer(
        added=lambda: observed.append(("added", 0)),
        retried=lambda: observed.append(("retried", 0)),
        taken=lambda seconds: observed.append(("taken", seconds)),
        finished=lambda seconds: observed.append(("finished", seconds)),
    )
    queue: WorkQueue[str] = WorkQueue(timers=timers, observer=observer)
    queue.add("a")
    timers.advance(2)
    await queue.get()
    timers.advance(3)
    queue.add_rate_limited("a")
    queue.done("a")
    assert observed == [("added", 0), ("taken", 2), ("retried", 0), ("finished", 3)]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "after", "limited", "get", "done", "advance"]), st.sampled_from("abc"))
)


@settings(deadline=None)
@given(OPERATIONS)
def test_no_key_is_lost_or_run_twice(operations: list[tuple[str, str]]) -> None:
    timers = FakeTimers()
    queue: WorkQueue[str] = WorkQueue(timers=timers)
    ask = {"add": queue.add, "after": lambda key: queue.add_after(key, 3), "limited": queue.add_rate_limited}
    wanted: set[str] = set()
    working: set[str] = set()
    for operation, key in operations:
        if operation in ask:
            ask[operation](key)
            wanted.add(key)
        elif operation == "advance":
            timers.advance(2)
        elif operation == "get" and queue.depth:
            taken = asyncio.run(queue.get())
            assert taken not in working, "two workers on one key"
            working.add(taken)
            wanted.remove(taken)
        elif operation == "done" and key in working:
            queue.done(key)
            working.remove(key)
    for key in working:
        queue.done(key)
    timers.advance(1000)
    assert queue.depth == len(wanted), "each key that was asked for, once"


async def test_default_timers_are_the_running_loop() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.005)
    assert await asyncio.wait_for(queue.get(), 5) == "a"
