"""The patches of a Workload: what they send, and which version they require."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW
from tests.support.workloads import Workload, workload
from trainyard.domain.state.workload import AdmissionCheck
from trainyard.domain.workload_changes import (
    Activate,
    Adapt,
    DropFinalizer,
    Finish,
    ReclaimPods,
    ReleaseQuota,
    ReportPodsReady,
    WorkloadChange,
)
from trainyard.queues.workload_patch import workload_patch

Json = dict[str, Any]
SEEN = {"uid": "workload-uid", "resourceVersion": "7"}
RELEASE = ReleaseQuota("Preempted", "for another job", requeued=True)


def patched(given: Workload, change: WorkloadChange) -> tuple[str | None, Json]:
    patch = workload_patch(given.view, change, NOW)
    assert {name: patch.body["metadata"][name] for name in SEEN} == SEEN
    return patch.subresource, patch.body


def conditions(body: Json) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in body["status"]["conditions"]}


def test_quota_is_released_in_one_patch() -> None:
    given = workload().admitted().condition("Preempted", reason="InClusterQueue").evicted()
    subresource, body = patched(given, RELEASE)
    assert subresource == "status"
    assert conditions(body) == {
        "Preempted": ("True", "InClusterQueue"),
        "Evicted": ("True", "Preempted"),
        "Requeued": ("True", "Preempted"),
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
    }
    assert body["status"] | {"conditions": []} == {
        "conditions": [],
        "admission": None,
        "reclaimablePods": None,
        "accumulatedPastExecutionTimeSeconds": 60,
    }


def test_unmet_checks_are_named_as_kueue_does() -> None:
    pending = workload().reserved().change(checks=(AdmissionCheck("provisioning", "Pending"),)).evicted()
    _, body = patched(pending, RELEASE)
    assert conditions(body)["Admitted"] == ("False", "NoReservationUnsatisfiedChecks")
    assert "accumulatedPastExecutionTimeSeconds" not in body["status"]


@pytest.mark.parametrize(("holds", "at"), [(False, "2026-01-02T11:59:00Z"), (True, "2026-01-02T12:00:00Z")])
def test_transition_time_changes_with_the_status(at: str, *, holds: bool) -> None:
    given = workload().admitted().condition("PodsReady", holds=False, reason="WaitForStart")
    _, body = patched(given, ReportPodsReady(holds, "WaitForRecovery", "text"))
    (ready,) = [each for each in body["status"]["conditions"] if each["type"] == "PodsReady"]
    assert ready == {
        "type": "PodsReady",
        "status": "True" if holds else "False",
        "reason": "WaitForRecovery",
        "message": "text",
        "lastTransitionTime": at,
        "observedGeneration": 2,
    }


@pytest.mark.parametrize(
    ("change", "subresource", "expected"),
    [
        (Activate(active=False), None, {"spec": {"active": False}}),
        (
            ReclaimPods((("worker", 2),)),
            "status",
            {"status": {"reclaimablePods": [{"name": "worker", "count": 2}]}},
        ),
        (ReclaimPods(()), "status", {"status": {"reclaimablePods": []}}),
    ],
)
def test_simple_changes(change: WorkloadChange, subresource: str | None, expected: Json) -> None:
    found, body = patched(workload(), change)
    assert (found, {name: part for name, part in body.items() if name != "metadata"}) == (subresource, expected)


def test_finish_keeps_the_other_conditions() -> None:
    _, body = patched(workload().admitted(), Finish("Failed", "worker 1 failed"))
    assert conditions(body)["Finished"] == ("True", "Failed")
    assert conditions(body).keys() == {"QuotaReserved", "Admitted", "Finished"}


def test_only_kueues_finalizer_is_dropped() -> None:
    given = workload(finalizers=("theirs", "kueue.x-k8s.io/resource-in-use"))
    subresource, body = patched(given, DropFinalizer())
    assert (subresource, body) == (None, {"metadata": {**SEEN, "finalizers": ["theirs"]}})


def test_adapting_removes_what_is_not_asked_any_more() -> None:
    wanted = {"metadata": {"annotations": {"a": "b"}}, "spec": {"queueName": "new", "podSets": [], "priority": 0}}
    patch = workload_patch(workload().view, Adapt(), NOW, wanted)
    assert patch.body["metadata"]["annotations"] == {"a": "b"}
    assert patch.body["spec"] == {
        "queueName": "new",
        "podSets": [],
        "priority": 0,
        "priorityClassRef": None,
        "maximumExecutionTimeSeconds": None,
    }


def test_execution_time_adds_up() -> None:
    given = workload(executed_seconds=100).admitted().evicted()
    patch = workload_patch(given.view, RELEASE, NOW + timedelta(seconds=40))
    assert patch.body["status"]["accumulatedPastExecutionTimeSeconds"] == 200
