"""A pod that does not start, and whose status does not say why: its events are read, seldom."""

from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.jobs import Scene, job
from tests.support.timers import FakeTimers
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.controller.reconcile import pod_events
from trainyard.controller.reconcile.pod_events import FIRST_READ_SECONDS, READ_AGAIN_SECONDS, PodEvents
from trainyard.kube.resource import EVENTS, PODS

MISSING = 'MountVolume.SetUp failed for volume "conf" : configmap "conf" not found'
STARTING = job(2).created().pod(0, scheduled=True, namespace="lab").pod(1, scheduled=True, namespace="lab")


def write(api: FakeApi, uid: str, reason: str, note: str, *, name: str = "a", **fields: Any) -> None:
    about = {"kind": "Pod", "uid": uid, "name": "train-worker-0-1"}
    event = {"metadata": {"name": name}, "regarding": about, "type": "Warning", "reason": reason, "note": note}
    api.cluster.create(EVENTS, LAB, {**event, **fields})


def lists(api: FakeApi) -> list[dict[str, str]]:
    return [call.query for call in api.calls if call.verb == "GET events"]


async def explained(reader: PodEvents, scene: Scene) -> list[str]:
    snapshot = await reader.explain(scene.snapshot)
    return [pod.issue.message for pod in snapshot.pods if pod.issue]


async def test_events_are_read_once_a_minute(api: FakeApi) -> None:
    timers = FakeTimers()
    reader = PodEvents(api.session(), timers.time)
    write(api, "pod-0-1", "FailedMount", MISSING)
    assert await explained(reader, STARTING) == []
    assert reader.wait("job-uid") == FIRST_READ_SECONDS
    timers.advance(FIRST_READ_SECONDS)
    assert await explained(reader, STARTING) == [MISSING]
    assert await explained(reader, STARTING) == [MISSING]
    assert lists(api) == [{"fieldSelector": "regarding.uid=pod-0-1", "limit": "50"}]
    timers.advance(READ_AGAIN_SECONDS)
    assert await explained(reader, STARTING) == [MISSING]
    assert len(lists(api)) == 2


async def test_the_event_with_the_reason_is_chosen(api: FakeApi) -> None:
    timers = FakeTimers()
    reader = PodEvents(api.session(), timers.time)
    write(api, "pod-0-1", "FailedMount", 'secret "old" not found', deprecatedLastTimestamp="2026-01-01T00:00:01Z")
    write(api, "pod-0-1", "FailedMount", MISSING, name="b", deprecatedLastTimestamp="2026-01-01T00:00:02Z")
    generic = "Unable to attach or mount volumes: timed out waiting for the condition"
    write(api, "pod-0-1", "FailedMount", generic, name="c", deprecatedLastTimestamp="2026-01-01T00:00:03Z")
    write(api, "pod-0-1", "DNSConfigForming", "too many", name="d", deprecatedLastTimestamp="2026-01-01T00:00:04Z")
    write(api, "another", "FailedMount", "no", name="e", deprecatedLastTimestamp="2026-01-01T00:00:05Z")
    await explained(reader, STARTING)
    timers.advance(FIRST_READ_SECONDS)
    assert await explained(reader, STARTING) == [MISSING]


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(job(2).created(), id="no node"),
        pytest.param(job(2).running(), id="running"),
        pytest.param(STARTING.waiting(0, "ErrImagePull", "x").waiting(1, "ErrImagePull", "x"), id="known reason"),
        pytest.param(STARTING.pod(0, init_container="load").pod(1, init_container="load"), id="init container"),
        pytest.param(STARTING.finished(), id="finished"),
    ],
)
async def test_no_event_is_read_without_need(api: FakeApi, scene: Scene) -> None:
    reader = PodEvents(api.session(), FakeTimers().time)
    await reader.explain(scene.snapshot)
    assert reader.wait("job-uid") is None


async def test_refused_events_change_nothing(api: FakeApi) -> None:
    timers = FakeTimers()
    reader = PodEvents(api.session(), timers.time)
    api.fault(method="GET", path=".*/events", status=403, reason="Forbidden", message="no")
    await explained(reader, STARTING)
    timers.advance(FIRST_READ_SECONDS)
    assert await explained(reader, STARTING) == []
    assert reader.wait("job-uid") == READ_AGAIN_SECONDS
    reader.forget("job-uid")
    assert reader.wait("job-uid") is None


async def test_missing_volume_is_in_condition_and_event(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_events, "FIRST_READ_SECONDS", 0.1)
    lab = Lab(api)
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        write(api, api.cluster.get(PODS, LAB, "job-worker-0-1")["metadata"]["uid"], "FailedMount", MISSING)
        lab.bind("job-worker-0-1")
        lab.bind("job-worker-1-1")
        await until(lambda: lab.condition("Running").get("reason") == "VolumeMountFailed")
        expected = f"pod job-worker-0-1: FailedMount: {MISSING}"
        assert lab.condition("Running")["message"] == expected
        await until(lambda: expected in [event["note"] for event in api.cluster.objects(EVENTS, LAB)])
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")


async def test_obstacle_that_has_passed_is_not_named(api: FakeApi) -> None:
    """The missing ConfigMap was created; the node pulls the image now, and reports no more than that."""
    timers = FakeTimers()
    reader = PodEvents(api.session(), timers.time)
    write(api, "pod-0-1", "FailedMount", MISSING, deprecatedLastTimestamp="2026-01-01T00:00:01Z")
    pulling = {"type": "Normal", "deprecatedLastTimestamp": "2026-01-01T00:10:00Z"}
    write(api, "pod-0-1", "Pulling", 'Pulling image "trainer:1"', name="b", **pulling)
    await explained(reader, STARTING)
    timers.advance(FIRST_READ_SECONDS)
    assert await explained(reader, STARTING) == []
