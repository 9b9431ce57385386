import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.timers import FakeTimers
from trainyard.kube.events import EventRecorder, ObjectReference
from trainyard.kube.resource import EVENTS

JOB = ObjectReference("trainyard.dev/v1alpha1", "TrainingJob", "ns", "digits", "uid-9")
NOW = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)


def recorder(api: FakeApi, timers: FakeTimers) -> EventRecorder:
    return EventRecorder(api.session(), "trainyard.dev/operator", "operator-0", clock=timers.time, now=lambda: NOW)


async def say(recorder: EventRecorder, key: str = "1", note: str = "worker 2 exited with 1", **fields: Any) -> None:
    regarding, order = fields.get("regarding", JOB), fields.get("sort_key", "")
    recorder.record(regarding, "Warning", "WorkerFailed", note, action="Restart", key=key, sort_key=order)
    writer = asyncio.create_task(recorder.run())
    await recorder.drain()
    writer.cancel()


async def test_event_has_all_required_fields(api: FakeApi, timers: FakeTimers) -> None:
    await say(recorder(api, timers))
    [event] = api.cluster.objects(EVENTS)
    assert event["metadata"]["namespace"] == "ns"
    assert event["metadata"]["name"].startswith("digits.")
    wanted = {
        "eventTime": "2026-05-01T12:00:00.123456Z",
        "reportingController": "trainyard.dev/operator",
        "reportingInstance": "operator-0",
        "action": "Restart",
        "reason": "WorkerFailed",
        "type": "Warning",
        "note": "worker 2 exited with 1",
        "regarding": {
            "apiVersion": "trainyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "namespace": "ns",
            "name": "digits",
            "uid": "uid-9",
        },
    }
    assert {key: event[key] for key in wanted} == wanted
    # Validation refuses these in events.k8s.io/v1.
    assert not {key for key in event if key.startswith("deprecated")}


async def test_repeated_event_raises_the_count(api: FakeApi, timers: FakeTimers) -> None:
    one = recorder(api, timers)
    for _ in range(3):
        await say(one)
    [event] = api.cluster.objects(EVENTS)
    assert event["series"] == {"count": 3, "lastObservedTime": "2026-05-01T12:00:00.123456Z"}
    assert [call.method for call in api.calls] == ["POST", "PATCH", "PATCH"]


async def test_repeated_event_after_crash_raises_the_count(api: FakeApi, timers: FakeTimers) -> None:
    await say(recorder(api, timers))
    await say(recorder(api, timers))
    await say(recorder(api, timers))
    [event] = api.cluster.objects(EVENTS)
    assert event["series"]["count"] == 3


async def test_repeated_event_keeps_its_sort_key(api: FakeApi, timers: FakeTimers) -> None:
    one = recorder(api, timers)
    await say(one, sort_key="01")
    await say(one, sort_key="02")
    [event] = api.cluster.objects(EVENTS)
    assert event["series"]["count"] == 2
    assert event["metadata"]["name"].startswith("digits.01")


async def test_another_key_is_another_event(api: FakeApi, timers: FakeTimers) -> None:
    one = recorder(api, timers)
    await say(one, key="1")
    await say(one, key="2")
    await say(one, key="1", regarding=ObjectReference("v1", "Pod", "ns", "digits", "uid-10"))
    assert len(api.cluster.objects(EVENTS)) == 3


async def test_expired_event_is_created_again(api: FakeApi, timers: FakeTimers) -> None:
    one = recorder(api, timers)
    await say(one)
    api.cluster.delete(EVENTS, "ns", api.cluster.objects(EVENTS)[0]["metadata"]["name"])
    await say(one)
    assert len(api.cluster.objects(EVENTS)) == 1


async def test_each_object_has_its_own_limit(api: FakeApi, timers: FakeTimers) -> None:
    one = recorder(api, timers)
    for number in range(60):
        await say(one, key=str(number))
    assert len(api.cluster.objects(EVENTS)) == 25
    await say(one, regarding=ObjectReference("v1", "Pod", "ns", "other", "uid-10"))
    assert len(api.cluster.objects(EVENTS)) == 26
    timers.advance(20)
    for number in range(60, 70):
        await say(one, key=str(number))
    assert len(api.cluster.objects(EVENTS)) == 28


async def test_a_long_note_is_cut_between_characters(api: FakeApi, timers: FakeTimers) -> None:
    await say(recorder(api, timers), note="ü" * 2000)
    note = api.cluster.objects(EVENTS)[0]["note"]
    assert len(note.encode()) <= 1024
    assert note.lstrip("ü") == "…"


async def test_long_object_name_is_cut(api: FakeApi, timers: FakeTimers) -> None:
    name = "a" * 199 + ".b" + "c" * 50
    await say(recorder(api, timers), regarding=ObjectReference("v1", "Pod", "ns", name, "u"))
    made = api.cluster.objects(EVENTS)[0]["metadata"]["name"]
    assert len(made) <= 253
    assert ".." not in made


@pytest.mark.parametrize(
    ("fault", "logged"),
    [
        ({"status": 500}, True),
        ({"status": 403, "reason": "Forbidden", "message": "cannot create events"}, True),
        ({"drop": True}, True),
        ({"status": 403, "reason": "Forbidden", "causes": ("NamespaceTerminating",)}, False),
        ({"status": 404, "reason": "NotFound"}, False),
    ],
)
async def test_write_failure_is_only_logged(
    api: FakeApi, timers: FakeTimers, caplog: pytest.LogCaptureFixture, fault: dict[str, Any], *, logged: bool
) -> None:
    api.fault(**fault)
    await say(recorder(api, timers))
    assert bool(caplog.records) is logged


async def test_sort_key_orders_the_events(api: FakeApi, timers: FakeTimers) -> None:
    one = recorder(api, timers)
    for position in ("0000100", "0000091", "0000090"):
        one.record(JOB, "Normal", "Reported", f"at {position}", action="Report", key=position, sort_key=position)
    writer = asyncio.create_task(one.run())
    await one.drain()
    writer.cancel()
    assert [event["note"] for event in api.cluster.objects(EVENTS)] == ["at 0000090", "at 0000091", "at 0000100"]


def regarding(namespace: str, number: int) -> ObjectReference:
    return ObjectReference("trainyard.dev/v1alpha1", "TrainingJob", namespace, f"job-{number}", f"{namespace}-{number}")


async def test_flood_of_one_namespace_delays_no_other(
    api: FakeApi, timers: FakeTimers, caplog: pytest.LogCaptureFixture
) -> None:
    one = recorder(api, timers)
    for number in range(10_500):
        one.record(regarding("flood", number), "Normal", "Failed", "", action="Report", key="1")
    one.record(regarding("quiet", 1), "Normal", "Failed", "", action="Report", key="1")
    written = [(await one._pending.get()).regarding.namespace for _ in range(2)]
    assert "quiet" in written
    assert len(caplog.records) == 1, "the log has a budget too"


async def test_each_namespace_has_its_own_limit(api: FakeApi, timers: FakeTimers) -> None:
    one = recorder(api, timers)
    queued = one._pending
    for number in range(10_000):
        one.record(regarding("flood", number), "Normal", "Failed", "", action="Report", key="1")
    for _ in range(10_000):
        await queued.get()
    for number in range(10_000, 10_100):
        one.record(regarding("flood", number), "Normal", "Failed", "", action="Report", key="1")
    one.record(regarding("quiet", 1), "Normal", "Failed", "", action="Report", key="1")
    assert (await queued.get()).regarding.namespace == "quiet"
