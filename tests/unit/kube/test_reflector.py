"""The reflector against a fake API server with all faults of a real one."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.running_reflector import LIST, WATCH, pod, watching
from tests.support.timers import FakeTimers
from tests.support.waiting import until
from trainyard.kube.resource import PODS


async def test_lists_then_watches(api: FakeApi) -> None:
    api.cluster.create(PODS, "ns", pod("one"))
    async with watching(api) as scene:
        await asyncio.wait_for(scene.reflector.synced.wait(), 5)
        assert scene.names() == {"one"}
        await api.watching()
        api.cluster.create(PODS, "ns", pod("two"))
        await scene.shows("one", "two")
        api.cluster.set_status(PODS, "ns", "one", phase="Running")
        await until(lambda: {pod.phase for pod in scene.store.of("a")} == {"Running", "Pending"})
        api.cluster.delete(PODS, "ns", "two")
        await scene.shows("one")
        assert scene.changes == ["a"] * 4
        assert scene.pauses == []


async def test_a_list_comes_in_pages(api: FakeApi) -> None:
    for number in range(7):
        api.cluster.create(PODS, "ns", pod(f"pod-{number}"))
    async with watching(api, page_size=3) as scene:
        await api.watching()
        assert len(scene.store) == 7
        assert scene.count(watch=False) == 3
        assert scene.changes == ["a"], "one list, one look"


async def test_selector_limits_the_objects(api: FakeApi) -> None:
    api.cluster.create(PODS, "ns", pod("ours"))
    api.cluster.create(PODS, "ns", pod("theirs", job="b"))
    async with watching(api, label_selector="job=a") as scene:
        await api.watching()
        assert len(scene.store) == 1
        api.cluster.merge(PODS, "ns", "ours", {"metadata": {"labels": {"job": "b"}}})
        await scene.shows()
        api.cluster.merge(PODS, "ns", "ours", {"metadata": {"labels": {"job": "a"}}})
        await scene.shows("ours")


async def test_expired_watch_finds_missed_deletions(api: FakeApi) -> None:
    api.cluster.create(PODS, "ns", pod("stays"))
    api.cluster.create(PODS, "ns", pod("goes", job="b"))
    async with watching(api) as scene:
        await api.watching()
        api.mute()
        api.cluster.delete(PODS, "ns", "goes")
        api.cluster.create(PODS, "ns", pod("comes"))
        api.cluster.compact()
        scene.changes.clear()
        api.cut()
        await scene.shows("stays", "comes")
        assert scene.names("b") == set()
        assert sorted(scene.changes) == ["a", "b"], (
            "the owner of what vanished is notified, the deletion itself was never seen"
        )


async def test_watch_rejected_with_410(api: FakeApi) -> None:
    api.fault(**WATCH, status=410, reason="Expired")
    api.cluster.create(PODS, "ns", pod("one"))
    async with watching(api) as scene:
        await api.watching()
        await scene.shows("one")
        assert scene.count(watch=False) == 2


async def test_dropped_stream_resumes(api: FakeApi) -> None:
    async with watching(api) as scene:
        await api.watching()
        api.cluster.create(PODS, "ns", pod("one"))
        await scene.shows("one")
        api.cut()
        api.cluster.create(PODS, "ns", pod("two"))
        await scene.shows("one", "two")
        assert scene.count(watch=False) == 1, "no list: the history is still there"


async def test_normal_end_of_watch_is_no_failure(api: FakeApi) -> None:
    async with watching(api) as scene:
        for number in range(5):
            await api.watching()
            api.cluster.create(PODS, "ns", pod(f"pod-{number}"))
            api.end()
        await until(lambda: len(scene.store) == 5)
        assert scene.pauses == []
        assert scene.count(watch=False) == 1


@pytest.mark.parametrize("text", ["", '{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"100"}}}\n'])
async def test_empty_watches_are_paused(api: FakeApi, text: str) -> None:
    api.fault(**WATCH, text=text, times=4)
    async with watching(api) as scene:
        await api.watching()
        assert scene.pauses == [1, 2, 3, 4]
        assert scene.count(watch=False) == 1


@pytest.mark.parametrize("status", [429, 500, 503, 504])
@pytest.mark.parametrize("at", [LIST, WATCH], ids=["list", "watch"])
async def test_failing_server_is_retried(api: FakeApi, at: dict[str, Any], status: int) -> None:
    api.fault(**at, status=status, reason="Trouble", times=6)
    api.cluster.create(PODS, "ns", pod("one"))
    async with watching(api) as scene:
        await api.watching()
        await scene.shows("one")
        assert max(scene.pauses) >= 3


async def test_other_error_in_stream_is_retried(api: FakeApi) -> None:
    error = {"type": "ERROR", "object": {"code": 500, "reason": "InternalError", "message": "etcd is away"}}
    async with watching(api) as scene:
        await api.watching()
        api.say(error)
        await until(lambda: scene.count(watch=True) == 2)
        await api.watching()
        api.cluster.create(PODS, "ns", pod("one"))
        await scene.shows("one")
        assert scene.count(watch=False) == 1


async def test_retry_after_of_429_is_respected(api: FakeApi, timers: FakeTimers) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    api.fault(**LIST, status=429, reason="TooManyRequests", retry_after=7, times=2)
    session = api.session(sleep=sleep)
    assert (await session.request("GET", PODS.path()))["items"] == []
    assert waits == [7.0, 7.0]


async def test_unreachable_server_is_retried(api: FakeApi) -> None:
    api.fault(drop=True, times=3)
    async with watching(api) as scene:
        await api.watching()
        # aiohttp makes a GET over a dropped connection once more by itself, so not every drop is a failure of ours.
        assert scene.pauses
        assert scene.reflector.synced.is_set()


async def test_silent_watch_causes_a_list(api: FakeApi) -> None:
    api.fault(**WATCH, silent=True)
    async with watching(api, idle_timeout=0.05) as scene:
        await until(lambda: scene.count(watch=True) >= 2)
        api.cluster.create(PODS, "ns", pod("one"))
        await scene.shows("one")
        assert scene.count(watch=False) >= 2


async def test_age_counts_from_the_last_activity(api: FakeApi, timers: FakeTimers) -> None:
    async with watching(api, clock=timers.time) as scene:
        await api.watching()
        timers.advance(40)
        assert scene.reflector.age() == 40
        api.bookmark()
        await until(lambda: scene.reflector.age() == 0)
        timers.advance(100)
        assert scene.reflector.age() == 100


async def test_rejection_does_not_reset_the_age(api: FakeApi, timers: FakeTimers) -> None:
    async with watching(api, clock=timers.time) as scene:
        await api.watching()
        timers.advance(40)
        fault = api.fault(method="GET", status=500, times=10**6)
        api.cut()
        await until(lambda: fault.times < 10**6 - 3)
        assert scene.reflector.age() == 40


async def test_watch_resumes_from_the_last_bookmark(api: FakeApi) -> None:
    async with watching(api) as scene:
        await api.watching()
        # Versions of other kinds: none of these comes to this watch as an event.
        api.cluster.version += 500
        api.bookmark()
        await until(lambda: scene.store.seen == api.cluster.version)
        api.cluster.compact()
        api.cut()
        await api.watching()
        assert scene.count(watch=False) == 1


async def test_expired_continue_token(api: FakeApi) -> None:
    for number in range(9):
        api.cluster.create(PODS, "ns", pod(f"pod-{number}"))
    refusal = json.dumps({"metadata": {"resourceVersion": "1", "continue": "stale"}, "items": []})
    api.fault(**LIST, text=refusal)
    async with watching(api, page_size=3) as scene:
        await api.watching()
        assert len(scene.store) == 9
        assert scene.pauses == [], "it is not a failure: one unpaged list follows at once"
        assert "limit" not in [call for call in api.calls if not call.watch][-1].query


async def test_unknown_version_causes_a_list(api: FakeApi) -> None:
    """After etcd was restored from a backup the server is behind us and answers 504 to each watch."""
    api.fault(**WATCH, status=504, reason="Timeout", message="Too large resource version", times=3)
    async with watching(api) as scene:
        await api.watching()
        assert scene.count(watch=False) == 2


async def test_cancellation_ends_the_reflector(api: FakeApi) -> None:
    async with watching(api):
        await api.watching()
    assert not [task for task in asyncio.all_tasks() if "run" in repr(task.get_coro())]


async def test_refresh_overtakes_a_lagging_watch(api: FakeApi) -> None:
    api.cluster.create(PODS, "ns", pod("old"))
    async with watching(api) as scene:
        await api.watching()
        api.mute()
        api.cluster.delete(PODS, "ns", "old")
        api.cluster.create(PODS, "ns", pod("new"))
        await scene.reflector.refresh()
        assert scene.names() == {"new"}
        api.watches[0].silent = False
        api.cluster.create(PODS, "ns", pod("later"))
        await scene.shows("new", "later")
