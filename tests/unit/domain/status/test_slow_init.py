"""An init container that keeps its pod from starting is named at once, and reported once it is slow."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, ago, job
from tests.unit.domain.observing import pod
from trainyard.api.status import ConditionType as C
from trainyard.domain.plan import plan
from trainyard.domain.state.observe import pod_view

STARTED = {"state": {"running": {"startedAt": "2026-01-02T11:00:00Z"}}}
SIDECAR = {"initContainers": [{"name": "mesh", "restartPolicy": "Always"}]}


def loading(seconds: float) -> Any:
    scene = job(2).created().pod(0, scheduled=True, init_container="istio-init", init_since=ago(seconds))
    return scene.pod(1, scheduled=True)


def test_running_init_container_is_named() -> None:
    decided = plan(loading(20).snapshot, NOW)
    running = decided.status.condition(C.RUNNING)
    assert running is not None
    assert running.message == "0 of 2 workers have started; pod train-worker-0-1 runs init container istio-init"
    assert [event.type for event in decided.events] == []
    assert decided.requeue_after == 280.0


def test_slow_init_container_is_reported_once() -> None:
    scene = loading(300)
    decided = plan(scene.snapshot, NOW)
    expected = (
        "pod train-worker-0-1: InitContainerRunning: init container istio-init has run since 11:55:00 UTC; "
        "the others wait for it"
    )
    assert [(event.reason, event.note) for event in decided.events] == [("InitContainerSlow", expected)]
    again = scene.with_status(conditions=decided.status.conditions)
    assert list(plan(again.snapshot, NOW + timedelta(minutes=5)).events) == []


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        ({}, {"initContainerStatuses": [{"name": "load", **STARTED}]}, "load"),
        (SIDECAR, {"initContainerStatuses": [{"name": "mesh", "started": False, **STARTED}]}, "mesh"),
        (SIDECAR, {"initContainerStatuses": [{"name": "mesh", "started": True, **STARTED}]}, ""),
        ({}, {"initContainerStatuses": [{"name": "load", "state": {"terminated": {"exitCode": 0}}}]}, ""),
        ({}, {}, ""),
    ],
    ids=["runs", "sidecar that starts", "sidecar", "done", "none"],
)
def test_init_container_of_a_pod(spec: dict[str, Any], status: dict[str, Any], expected: str) -> None:
    made = pod({"phase": "Pending", **status})
    made["spec"] |= spec
    seen = pod_view(made)
    assert (seen.init_container, seen.init_since is not None) == (expected, bool(expected))
