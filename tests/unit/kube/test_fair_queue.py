import asyncio

from trainyard.kube.fair_queue import FairQueue


async def test_namespaces_take_turns() -> None:
    queue = FairQueue[str](10)
    for item in ("a1", "a2", "a3", "b1"):
        assert queue.put(item[0], item) is None
    assert [await queue.get() for _ in range(4)] == ["a1", "b1", "a2", "a3"]


async def test_full_queue_drops_from_the_longest() -> None:
    queue = FairQueue[str](3)
    for item in ("a1", "a2", "a3"):
        queue.put("a", item)
    assert queue.put("b", "b1") == "a3"
    assert queue.put("a", "a4") == "a4"
    assert [await queue.get() for _ in range(3)] == ["a1", "b1", "a2"]


async def test_join_waits_for_all_items() -> None:
    queue = FairQueue[str](3)
    queue.put("a", "a1")
    joined = asyncio.ensure_future(queue.join())
    await queue.get()
    await asyncio.sleep(0)
    assert not joined.done()
    queue.task_done()
    await joined
