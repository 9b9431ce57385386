"""The reflector against a fake API server that goes wrong in every way a real one does."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.reflecting import LIST, WATCH, pod, watching
from tests.support.timers import FakeTimers
from tests.support.waiting import until
from trainyard.kube.resource import PODS


async def test_lists_then_follows(api: FakeApi) -> None:
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


async def test_only_what_the_selector_names(api: FakeApi) -> None:
    api.cluster.create(PODS, "ns", pod("ours"))
    api.cluster.create(PODS, "ns", pod("theirs", job="b"))
    async with watching(api, label_selector="job=a") as scene:
        await api.watching()
        assert len(scene.store) == 1
        api.cluster.merge(PODS, "ns", "ours", {"metadata": {"labels": {"job": "b"}}})
        await scene.shows()
        api.cluster.merge(PODS, "ns", "ours", {"metadata": {"labels": {"job": "a"}}})
        await scene.shows("ours")


async def test_410_in_the_stream_is_a_gap_and_its_deletions_are_found(api: FakeApi) -> None:
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
            "the owner of what vanished is told, the deletion itself was never seen"
        )


async def test_410_as_the_answer_to_the_watch(api: FakeApi) -> None:
    api.fault(**WATCH, status=410, reason="Expired")
    api.cluster.create(PODS, "ns", pod("one"))
    async with watching(api) as scene:
        await api.watching()
        await scene.shows("one")
        assert scene.count(watch=False) == 2


async def test_a_dropped_stream_goes_on_where_it_was(api: FakeApi) -> None:
    async with watching(api) as scene:
        await api.watching()
        api.cluster.create(PODS, "ns", pod("one"))
        await scene.shows("one")
        api.cut()
        api.cluster.create(PODS, "ns", pod("two"))
        await scene.shows("one", "two")
        assert scene.count(watch=False) == 1, "no list: the history is still there"


async def test_the_servers_own_end_of_a_watch_is_no_failure(api: FakeApi) -> None:
    async with watching(api) as scene:
        for number in range(5):
            await api.watching()
            api.cluster.create(PODS, "ns", pod(f"pod-{number}"))
            api.end()
        await until(lambda: len(scene.store) == 5)
        assert scene.pauses == []
        assert scene.count(watch=False) == 1


@pytest.mark.parametrize("text", ["", '{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"100"}}}\n'])
async def test_a_watch_that_always_ends_at_once_is_not_asked_in_a_tight_loop(api: FakeApi, text: str) -> None:
    api.fault(**WATCH, text=text, times=4)
    async with watching(api) as scene:
        await api.watching()
        assert scene.pauses == [1, 2, 3, 4]
        assert scene.count(watch=False) == 1


@pytest.mark.parametrize("status", [429, 500, 503, 504])
@pytest.mark.parametrize("at", [LIST, WATCH], ids=["list", "watch"])
async def test_a_server_in_trouble_is_outlived(api: FakeApi, at: dict[str, Any], status: int) -> None:
    api.fault(**at, status=status, reason="Trouble", times=6)
    api.cluster.create(PODS, "ns", pod("one"))
    async with watching(api) as scene:
        await api.watching()
        await scene.shows("one")
        assert max(scene.pauses) >= 3


async def test_in_stream_error_other_than_410_is_outlived(api: FakeApi) -> None:
    error = {"type": "ERROR", "object": {"code": 500, "reason": "InternalError", "message": "etcd is away"}}
    async with watching(api) as scene:
        await api.watching()
        api.say(error)
        await until(lambda: scene.count(watch=True) == 2)
        await api.watching()
        api.cluster.create(PODS, "ns", pod("one"))
        await scene.shows("one")
        assert scene.count(watch=False) == 1


async def test_429_says_when_to_come_back(api: FakeApi, timers: FakeTimers) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    api.fault(**LIST, status=429, reason="TooManyRequests", retry_after=7, times=2)
    session = api.session(sleep=sleep)
    assert (await session.request("GET", PODS.path()))["items"] == []
    assert waits == [7.0, 7.0]


async def test_a_server_that_is_not_there_yet(api: FakeApi) -> None:
    api.fault(drop=True, times=3)
    async with watching(api) as scene:
        await api.watching()
        # aiohttp makes a GET over a dropped connection once more by itself, so not every drop is a failure of ours.
        assert scene.pauses
        assert scene.reflector.synced.is_set()


async def test_silence_is_a_dead_connection_and_costs_a_list(api: FakeApi) -> None:
    api.fault(**WATCH, silent=True)
    async with watching(api, idle_timeout=0.05) as scene:
        await until(lambda: scene.count(watch=True) >= 2)
        api.cluster.create(PODS, "ns", pod("one"))
        await scene.shows("one")
        assert scene.count(watch=False) >= 2


async def test_age_is_the_time_since_the_last_sign_of_life(api: FakeApi, timers: FakeTimers) -> None:
    async with watching(api, clock=timers.time) as scene:
        await api.watching()
        timers.advance(40)
        assert scene.reflector.age() == 40
        api.bookmark()
        await until(lambda: scene.reflector.age() == 0)
        timers.advance(100)
        assert scene.reflector.age() == 100


async def test_a_refusal_is_no_sign_of_life(api: FakeApi, timers: FakeTimers) -> None:
    async with watching(api, clock=timers.time) as scene:
        await api.watching()
        timers.advance(40)
        fault = api.fault(method="GET", status=500, times=10**6)
        api.cut()
        await until(lambda: fault.times < 10**6 - 3)
        assert scene.reflector.age() == 40


async def test_bookmarks_move_the_point_from_which_a_watch_goes_on(api: FakeApi) -> None:
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


async def test_a_page_token_that_runs_out(api: FakeApi) -> None:
    for number in range(9):
        api.cluster.create(PODS, "ns", pod(f"pod-{number}"))
    refusal = json.dumps({"metadata": {"resourceVersion": "1", "continue": "stale"}, "items": []})
    api.fault(**LIST, text=refusal)
    async with watching(api, page_size=3) as scene:
        await api.watching()
        assert len(scene.store) == 9
        assert scene.pauses == [], "it is not a failure: one unpaged list follows at once"
        assert "limit" not in [call for call in api.calls if not call.watch][-1].query


async def test_a_version_the_server_does_not_know_leads_to_a_list(api: FakeApi) -> None:
    """After etcd was restored from a backup the server is behind us and answers 504 to each watch."""
    api.fault(**WATCH, status=504, reason="Timeout", message="Too large resource version", times=3)
    async with watching(api) as scene:
        await api.watching()
        assert scene.count(watch=False) == 2


async def test_cancellation_ends_it(api: FakeApi) -> None:
    async with watching(api):
        await api.watching()
    assert not [task for task in asyncio.all_tasks() if "run" in repr(task.get_coro())]


async def test_a_list_in_between_shows_what_a_watch_that_is_behind_does_not(api: FakeApi) -> None:
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
