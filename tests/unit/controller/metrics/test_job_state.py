"""Metrics of a job's state, and of the time to start, to detect failures and to recover."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.support.jobs import NOW, Scene, ago, condition, job
from tests.unit.controller.raw_job import RAW
from trainyard.api.internal_status import Backoff, Group
from trainyard.api.recovery import RestartScope
from trainyard.api.status import ConditionType, LastFailure, Phase, Restarts, TrainingJobStatus
from trainyard.api.worker_status import RoleStatus
from trainyard.controller.metrics.collector import CacheMetrics
from trainyard.controller.metrics.durations import Durations
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.resources import job_record
from trainyard.domain.plan import plan

FAILED = LastFailure(time=ago(9), attempt=1, pod="job-worker-0-1", pod_uid="1", reason="Error")


def moved(before: TrainingJobStatus, after: TrainingJobStatus) -> dict[str, tuple[float, float]]:
    """Return the count of each histogram, and the sum of its seconds."""
    registry = CollectorRegistry()
    Durations(registry).status_changed(replace(job(2).job, status=before), after)
    found = {}
    for family in registry.collect():
        count, total = (
            sum(each.value for each in family.samples if each.name == f"{family.name}_{kind}")
            for kind in ("count", "sum")
        )
        if count:
            found[family.name.removeprefix("trainyard_").removesuffix("_seconds")] = (count, total)
    return found


def status(**fields: Any) -> TrainingJobStatus:
    return TrainingJobStatus().evolve(**fields)


def test_startup_lasts_until_all_workers_run() -> None:
    begun = status(attempt_start_time=ago(40))
    runs = begun.evolve(running_time=NOW)
    assert moved(begun, begun) == {}
    assert moved(begun, runs) == {"startup": (1, 40)}
    assert moved(runs, runs) == {}


@pytest.mark.parametrize("scene", [job(3).running().failed(1), job(3).running().failed(1, exit_code=91)])
def test_detection_lasts_until_the_decision(scene: Scene) -> None:
    decided = plan(scene.snapshot, NOW).status
    assert decided.last_failure is not None
    seconds = (NOW - decided.last_failure.time).total_seconds()
    assert moved(scene.status, decided) == {"failure_detection": (1, seconds)}
    assert moved(decided, decided) == {}


def test_final_failure_counts_as_detected() -> None:
    over = status(last_failure=FAILED, phase=Phase.FAILED, completion_time=NOW, attempt_start_time=ago(500))
    assert moved(status(attempt_start_time=ago(500)), over) == {"failure_detection": (1, 9)}


@pytest.mark.parametrize(
    ("group", "scope"), [(Group(created_in_attempt=1), RestartScope.PROCESS), (None, RestartScope.GROUP)]
)
def test_recovery_lasts_until_the_next_attempt_runs(group: Group | None, scope: RestartScope) -> None:
    begun = status(
        attempt=2,
        last_failure=FAILED,
        attempt_start_time=ago(8),
        group=group,
        backoff=Backoff(scope=RestartScope.PROCESS),
    )
    runs = begun.evolve(running_time=NOW)
    assert moved(begun, runs) == {"recovery": (1, 9)}
    registry = CollectorRegistry()
    Durations(registry).status_changed(replace(job(2).job, status=begun), runs)
    assert registry.get_sample_value("trainyard_recovery_seconds_count", {"scope": scope}) == 1


def test_attempt_without_failure_counts_as_startup() -> None:
    begun = status(attempt=3, last_failure=FAILED, attempt_start_time=ago(4))
    assert moved(begun, begun.evolve(running_time=NOW)) == {"startup": (1, 4)}


def test_clock_skew_gives_no_negative_duration() -> None:
    begun = status(attempt_start_time=NOW)
    assert moved(begun, begun.evolve(running_time=ago(5))) == {"startup": (1, 0)}


def test_state_of_each_job_is_exported() -> None:
    registry, caches = CollectorRegistry(), Caches.empty()
    CacheMetrics(caches, registry, lambda: True)
    limits = {"resources": {"limits": {"nvidia.com/gpu": "8", "rdma/hca": 1}}}
    spec = {"replicas": 4, "template": {"spec": {"containers": [{"name": "main", "image": "trainer:1", **limits}]}}}
    running = status(phase=Phase.RUNNING, attempt=3, replicas=4, restarts=Restarts(failures=1, hangs=1, resizes=1))
    record = job_record({**RAW, "spec": spec}).with_status(running, 9)
    caches.of("lab").jobs.apply(record)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"trainyard_job_{name}", {"namespace": "lab", "name": "job", **labels})

    assert value("phase", phase="Running") == 1
    assert value("phase", phase="Pending") is None
    assert value("attempt") == 3
    assert [value("restarts_total", cause=cause) for cause in ("failure", "disruption", "resize")] == [1, 0, 1]
    assert value("accelerators") == 32
    caches.of("lab").jobs.apply(record.with_status(running.evolve(replicas=0), 10))
    assert value("accelerators") is None
    joining = running.evolve(replicas=6)
    caches.of("lab").jobs.apply(record.with_status(joining, 11))
    assert value("accelerators") == 32, "those that are to join may have no place"
    ended = [condition(ConditionType.COMPLETE)]
    caches.of("lab").jobs.apply(record.with_status(running.evolve(phase=Phase.COMPLETE, conditions=ended), 12))
    assert value("accelerators") is None, "pods that have ended are kept for their logs"
    caches.of("lab").jobs.remove("1")
    assert value("attempt") is None


def test_roles_of_each_job_are_exported() -> None:
    registry, caches = CollectorRegistry(), Caches.empty()
    CacheMetrics(caches, registry, lambda: True)
    gpu: dict[str, Any] = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    template = {"spec": {"containers": [{"name": "main", "image": "trainer:1", **gpu}]}}
    roles = [{"name": "chief"}, {"name": "ps", "replicas": 3, "resources": {"limits": {"cpu": 1}}}]
    spec = {"framework": "tensorflow", "replicas": 4, "roles": roles, "template": template}
    seen = [RoleStatus(name="worker", replicas=4, ready_replicas=2, restarts=5)]
    running = status(phase=Phase.RUNNING, replicas=4, roles=seen)
    caches.of("lab").jobs.apply(job_record({**RAW, "spec": spec}).with_status(running, 9))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"trainyard_job_{name}", {"namespace": "lab", "name": "job", **labels})

    names = ("role_replicas", "role_ready_replicas", "role_container_restarts_total")
    assert [value(name, role="worker") for name in names] == [4, 2, 5]
    assert value("accelerators") == 10, "of four workers and the chief; parameter servers have none"


def test_finished_job_keeps_its_roles() -> None:
    roles = [{"name": "chief", "image": "large:1"}, {"name": "ps", "replicas": 3}]
    record = job_record({**RAW, "spec": {**RAW["spec"], "framework": "tensorflow", "roles": roles}})
    ended = record.with_status(status(phase=Phase.COMPLETE, conditions=[condition(ConditionType.COMPLETE)]), 12)
    assert ended.view is not None
    assert [(role.name, role.replicas, role.image) for role in ended.view.spec.roles] == [
        ("chief", 1, None),
        ("ps", 3, None),
    ]
