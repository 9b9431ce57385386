"""The reflector with malformed lines, stale events and unreadable objects, and its log."""

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.running_reflector import LIST, WATCH, Pod, pod, watching
from tests.support.timers import FakeTimers
from tests.support.waiting import until
from trainyard.kube.reflector import Reflector, RestoredError
from trainyard.kube.resource import PODS
from trainyard.kube.store import Store


async def test_stale_and_repeated_events_change_nothing(api: FakeApi) -> None:
    async with watching(api) as scene:
        await api.watching()
        first = api.cluster.create(PODS, "ns", pod("one"))
        second = api.cluster.set_status(PODS, "ns", "one", phase="Running")
        gone = api.cluster.create(PODS, "ns", pod("gone"))
        api.cluster.delete(PODS, "ns", "gone")
        for event in (first, second, gone):
            api.say({"type": "MODIFIED", "object": event})
        api.cluster.create(PODS, "ns", pod("last"))
        await scene.shows("one", "last")
        assert {pod.phase for pod in scene.store.of("a") if pod.name == "one"} == {"Running"}
        assert len(scene.changes) == 5


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "MODIFIED", "object": {"metad\n',
        b"<html>bad gateway</html>\n",
        b"[]\n",
        b'{"type": "MODIFIED"}\n',
        b'{"type": "MODIFIED", "object": {"metadata": {}}}\n',
        b'{"type": "SOMETHING", "object": {"metadata": {"resourceVersion": "9"}}}\n',
    ],
)
async def test_malformed_line_causes_a_list(api: FakeApi, line: bytes) -> None:
    async with watching(api) as scene:
        await api.watching()
        api.say(line)
        await until(lambda: scene.count(watch=False) == 2)
        await until(lambda: scene.count(watch=True) == 2)
        api.cluster.create(PODS, "ns", pod("one"))
        await scene.shows("one")


async def test_lagging_server_is_retried(api: FakeApi) -> None:
    async with watching(api) as scene:
        await api.watching()
        api.cluster.create(PODS, "ns", pod("one"))
        api.bookmark()
        await scene.shows("one")
        old = json.dumps({"metadata": {"resourceVersion": "0"}, "items": []})
        api.fault(**LIST, text=old, times=3)
        api.say(b"garbage\n")
        await until(lambda: len(scene.pauses) == 4)
        await api.watching()
        api.cluster.create(PODS, "ns", pod("two"))
        await scene.shows("one", "two")


async def test_restored_server_raises(api: FakeApi, timers: FakeTimers) -> None:
    """Lists that are older than earlier ones for half a minute end the reflector."""
    store: Store[Pod, str] = Store(lambda pod: pod.job)
    reflector = Reflector(
        api.session(), PODS, Pod.read, store, lambda _: None, clock=timers.time, backoff=lambda _: 0.0
    )
    running = asyncio.create_task(reflector.run())
    await api.watching()
    store.observe(1000)
    api.say(b"garbage\n")
    await until(lambda: sum(not call.watch for call in api.calls) > 3)
    timers.advance(31)
    with pytest.raises(RestoredError, match="at version 100 of pods in all namespaces, and was at 1000 before"):
        await asyncio.wait_for(running, 10)


async def test_older_object_in_list_means_restored_cluster(api: FakeApi) -> None:
    store: Store[Pod, str] = Store(lambda pod: pod.job)
    reflector = Reflector(api.session(), PODS, Pod.read, store, lambda _: None, backoff=lambda _: 0.0)
    running = asyncio.create_task(reflector.run())
    await api.watching()
    before = api.cluster.create(PODS, "ns", pod("one"))
    api.cluster.set_status(PODS, "ns", "one", phase="Running")
    await until(lambda: [pod.phase for pod in store.of("a")] == ["Running"])
    api.fault(**LIST, text=json.dumps({"metadata": {"resourceVersion": "200"}, "items": [before]}))
    api.say(b"garbage\n")
    with pytest.raises(RestoredError, match="an object of pods in all namespaces is at version 101 again"):
        await asyncio.wait_for(running, 10)


async def test_successful_lists_do_not_reset_backoff(api: FakeApi, timers: FakeTimers) -> None:
    api.fault(**WATCH, text="garbage\n", times=5)
    async with watching(api, clock=timers.time) as scene:
        await api.watching()
        assert scene.pauses == [1, 2, 3, 4, 5]
        timers.advance(120)
        api.say(b"garbage\n")
        await until(lambda: len(scene.pauses) == 6)
        assert scene.pauses[-1] == 1, "after a calm time it is the first failure again"


async def test_bug_in_callback_is_logged_and_survived(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    bugs = [ZeroDivisionError("a bug of ours")]

    def on_change(key: str) -> None:
        if bugs:
            raise bugs.pop()

    async with watching(api, on_change=on_change) as scene:
        await api.watching()
        api.cluster.create(PODS, "ns", pod("one"))
        await until(lambda: not bugs)
        await api.watching()
        api.cluster.create(PODS, "ns", pod("two"))
        await scene.shows("one", "two")
    assert "a bug of ours" in caplog.text


@pytest.mark.parametrize("body", ["<html>hello</html>", "[]", "{}", '{"metadata": {"resourceVersion": "x"}}'])
async def test_malformed_list_is_retried(api: FakeApi, body: str) -> None:
    api.fault(**LIST, text=body)
    api.cluster.create(PODS, "ns", pod("one"))
    async with watching(api) as scene:
        await scene.shows("one")


async def test_large_object_is_read(api: FakeApi) -> None:
    async with watching(api) as scene:
        await api.watching()
        api.cluster.create(PODS, "ns", pod("large", spec={"text": "x" * 1_400_000}))
        await scene.shows("large")
        assert scene.pauses == []


async def test_unreadable_object_is_logged_once_and_kept(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    def read(raw: dict[str, Any]) -> Pod:
        if raw["metadata"].get("annotations"):
            raise ValueError("poison")
        return Pod.read(raw)

    api.cluster.create(PODS, "ns", pod("one"))
    async with watching(api, project=read) as scene:
        await api.watching()
        for number in range(3):
            api.cluster.merge(PODS, "ns", "one", {"metadata": {"annotations": {"n": str(number)}}})
        api.cluster.create(PODS, "ns", {"metadata": {"name": "born-bad", "annotations": {"n": "0"}}})
        api.cluster.create(PODS, "ns", pod("two"))
        await scene.shows("one", "two")
        api.mute()
        api.cluster.merge(PODS, "ns", "one", {"metadata": {"annotations": {"n": "9"}}})
        api.cluster.compact()
        api.cut()
        await until(lambda: scene.count(watch=False) == 2)
        await api.watching()
        assert scene.names() == {"one", "two"}, "what cannot be read is not deleted"
        assert sum("ns/one" in record.message for record in caplog.records) == 1
        assert sum("ns/born-bad" in record.message for record in caplog.records) == 1
        api.cluster.delete(PODS, "ns", "one")
        await scene.shows("two")


async def test_missing_permission_is_logged_once_and_retried(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    message = 'pods is forbidden: User "x" cannot list resource "pods"'
    api.fault(**LIST, status=403, reason="Forbidden", message=message, times=20)
    async with watching(api):
        await api.watching()
    logged = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(logged) == 1
    assert "grant its service account the verb list on pods" in logged[0]
    assert any(
        record.message == "missing permission was granted permission='list pods in all namespaces'"
        for record in caplog.records
    )


async def test_consecutive_failures_are_logged_once(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    api.fault(**LIST, status=503, times=20)
    async with watching(api):
        await api.watching()
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
