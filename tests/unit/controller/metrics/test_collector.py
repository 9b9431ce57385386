"""Metrics of jobs: each restart counts once, by its cause."""

import pytest
from prometheus_client import CollectorRegistry

from tests.support.jobs import NOW, Scene, ago, condition, job
from tests.unit.controller.raw_job import RAW
from trainyard.api.base import MAX_JSON_INTEGER
from trainyard.api.internal_status import Group
from trainyard.api.progress import Goodput, LostSeconds, MeasuredProgress, Progress, Straggler
from trainyard.api.status import Avoidance, ConditionType, Phase, Restarts, SuspectNode, TrainingJobStatus
from trainyard.controller.metrics.collector import MAX_NODES, CacheMetrics, JobMetrics
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.resources import job_record
from trainyard.domain.plan import plan

ALL = job(3).running()


@pytest.mark.parametrize(
    ("scene", "cause"),
    [
        (ALL.failed(1), "failure"),
        (ALL.failed(1, exit_code=91), "hang"),
        (ALL.deleted(1), "disruption"),
        (ALL.with_spec(replicas=5), "resize"),
    ],
)
def test_each_restart_counts_one_cause(scene: Scene, cause: str) -> None:
    registry = CollectorRegistry()
    JobMetrics(registry).status_changed(scene.job, plan(scene.snapshot, NOW).status)
    causes = ("failure", "hang", "disruption", "resize")
    counted = {each: registry.get_sample_value("trainyard_restarts_total", {"cause": each}) for each in causes}
    assert counted == {each: float(each == cause) for each in causes}


def test_straggling_ranks_are_exported_while_they_exist() -> None:
    registry, caches = CollectorRegistry(), Caches.empty()
    acting = True
    CacheMetrics(caches, registry, leading=lambda: acting)
    name = "trainyard_job_straggling_ranks"

    def straggling() -> float | None:
        return registry.get_sample_value(name, {"namespace": "lab", "name": "job"})

    def know(version: int, *slow: Straggler) -> None:
        status = TrainingJobStatus().evolve(stragglers=[*slow])
        caches.of("lab").jobs.apply(job_record(RAW).with_status(status, version))

    know(8)
    assert straggling() is None, "a job without stragglers has no series"
    slow = Straggler(rank=3, pod="job-worker-3-1", step_seconds=0.4, factor=2.0, since=NOW)
    know(9, slow, slow.evolve(rank=4, confirmed=True))
    assert straggling() == 1.0, "only confirmed stragglers count"
    acting = False
    assert straggling() is None
    acting = True
    caches.of("lab").jobs.remove("1")
    assert straggling() is None


@pytest.mark.parametrize(("phase", "expected"), [(Phase.RUNNING, 2.0), (Phase.RESTARTING, 2.0), (Phase.FAILED, None)])
def test_avoided_nodes_are_exported(phase: Phase, expected: float | None) -> None:
    registry, caches = CollectorRegistry(), Caches.empty()
    CacheMetrics(caches, registry, lambda: True)
    nodes = [SuspectNode(name=each, avoidance=each, until=NOW) for each in Avoidance]
    caches.of("lab").jobs.apply(
        job_record(RAW).with_status(TrainingJobStatus().evolve(phase=phase, suspect_nodes=nodes), 9)
    )
    about = {"namespace": "lab", "name": "job"}
    assert registry.get_sample_value("trainyard_job_avoided_nodes", about) == expected


def test_failures_by_node_add_up_over_jobs() -> None:
    registry, caches = CollectorRegistry(), Caches.empty()
    CacheMetrics(caches, registry, lambda: True)
    for number, failures in ((1, 2), (2, 3)):
        raw = {**RAW, "metadata": {**RAW["metadata"], "uid": str(number), "name": f"job-{number}"}}
        status = TrainingJobStatus().evolve(suspect_nodes=[SuspectNode(name="bad", failures=failures, until=NOW)])
        caches.of("lab").jobs.apply(job_record(raw).with_status(status.evolve(phase=Phase.FAILED), 9))
    assert registry.get_sample_value("trainyard_node_failures", {"node": "bad"}) == 5.0


def test_series_of_nodes_are_bounded() -> None:
    registry, caches = CollectorRegistry(), Caches.empty()
    CacheMetrics(caches, registry, lambda: True)
    for number in range(MAX_NODES + 1):
        raw = {**RAW, "metadata": {**RAW["metadata"], "uid": str(number), "name": f"job-{number}"}}
        node = SuspectNode(name=f"node-{number}", failures=1 + (number > 0), until=NOW)
        caches.of("lab").jobs.apply(job_record(raw).with_status(TrainingJobStatus().evolve(suspect_nodes=[node]), 9))
    samples = [
        each for family in registry.collect() if family.name == "trainyard_node_failures" for each in family.samples
    ]
    assert len(samples) == MAX_NODES
    assert {"node": "node-0"} not in [each.labels for each in samples], "the node with the fewest failures"


def test_out_of_range_counts_are_tolerated() -> None:
    scene = ALL.with_status(restarts=Restarts(failures=MAX_JSON_INTEGER)).failed(1, exit_code=91)
    JobMetrics(CollectorRegistry()).status_changed(scene.job, plan(scene.snapshot, NOW).status)


def test_leader_exports_goodput_while_the_job_exists() -> None:
    registry, caches, acting = CollectorRegistry(), Caches.empty(), [True]
    CacheMetrics(caches, registry, lambda: acting[0])
    goodput = Goodput(ratio=0.75, productive_seconds=90, lost_seconds=LostSeconds(recovery=20.5, other=9.5))
    silent = {"metadata": {"uid": "b", "namespace": "lab", "name": "silent", "resourceVersion": "2", "generation": 1}}
    metadata = {"uid": "a", "namespace": "lab", "name": "train", "resourceVersion": "1", "generation": 1}
    spec = {"template": {"spec": {"containers": [{"name": "main", "image": "trainer:1"}]}}}
    jobs = caches.of("lab").jobs
    jobs.apply(job_record({"metadata": metadata, "spec": spec, "status": {"goodput": goodput.dump()}}))
    jobs.apply(job_record({**silent, "spec": spec, "status": {}}))

    def samples() -> dict[str, float]:
        return {
            "/".join([each.name, *each.labels.values()]): each.value
            for family in registry.collect()
            for each in family.samples
            if each.name.startswith("trainyard_job_")
            and each.name.removeprefix("trainyard_job_") not in {"workers", "phase", "attempt", "restarts_total"}
        }

    assert samples() == {
        "trainyard_job_goodput_ratio/lab/train": 0.75,
        "trainyard_job_productive_seconds_total/lab/train": 90.0,
        "trainyard_job_lost_seconds_total/lab/train/startup": 0.0,
        "trainyard_job_lost_seconds_total/lab/train/recovery": 20.5,
        "trainyard_job_lost_seconds_total/lab/train/repeated": 0.0,
        "trainyard_job_lost_seconds_total/lab/train/preflight": 0.0,
        "trainyard_job_lost_seconds_total/lab/train/other": 9.5,
    }
    acting[0] = False
    assert samples() == {}
    acting[0] = True
    jobs.remove("a")
    assert samples() == {}
    early = {**metadata, "resourceVersion": "3"}
    jobs.apply(job_record({"metadata": early, "spec": spec, "status": {"goodput": Goodput(step=3).dump()}}))
    assert "trainyard_job_goodput_ratio/lab/train" not in samples(), "not known yet, which is not 0"


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (
            Phase.RUNNING,
            {
                "workers": 4, "step": 120, "total_steps": 900, "loss": 0.25, "progress_timestamp_seconds": NOW.timestamp(),
                "active_timestamp_seconds": ago(60).timestamp(), "step_seconds": 0.5, "fastest_rank_seconds": 0.25, "slowest_rank_seconds": 0.4, "samples_per_second": 640, "data_ratio": 0.125, "memory_bytes": 2**30,
            },
        ),
        (Phase.RESTARTING, {"workers": 4, "step": 120, "total_steps": 900, "loss": 0.25, "progress_timestamp_seconds": NOW.timestamp(), "active_timestamp_seconds": ago(60).timestamp()}),
        (Phase.SUSPENDED, {}),
        (Phase.FAILED, {}),
    ],
)  # fmt: skip
def test_progress_and_speed_are_exported(phase: Phase, expected: dict[str, float]) -> None:
    """Speeds are exported only while it runs, and nothing once it has finished or is suspended."""
    registry, caches = CollectorRegistry(), Caches.empty()
    CacheMetrics(caches, registry, lambda: True)
    measured = MeasuredProgress(samples_per_second=640, data_share=0.125, memory_bytes=2**30)
    paces = {"step_seconds": 0.5, "fastest_rank_seconds": 0.25, "slowest_rank_seconds": 0.4}
    progress = Progress(step=120, total_steps=900, loss=0.25, **paces, measured=measured, updated_at=NOW)
    status = TrainingJobStatus().evolve(
        phase=phase, progress=progress, group=Group(created_in_attempt=1, size=4), active_since=ago(60)
    )
    caches.of("lab").jobs.apply(job_record(RAW).with_status(status, 9))
    prefix, about = "trainyard_job_", {"namespace": "lab", "name": "job"}
    samples = [each for family in registry.collect() for each in family.samples if each.name.startswith(prefix)]
    assert {each.name.removeprefix(prefix): each.value for each in samples if each.labels == about} == {
        **expected,
        "attempt": 1,
    }


def test_suspected_hang_is_exported_while_it_lasts() -> None:
    registry, caches = CollectorRegistry(), Caches.empty()
    CacheMetrics(caches, registry, leading=lambda: True)

    def suspected() -> float | None:
        return registry.get_sample_value("trainyard_job_hang_suspected", {"namespace": "lab", "name": "job"})

    for version, holds, expected in ((8, False, None), (9, True, 1.0), (10, False, None)):
        status = TrainingJobStatus().evolve(conditions=[condition(ConditionType.HANG_SUSPECTED, holds=holds)])
        caches.of("lab").jobs.apply(job_record(RAW).with_status(status, version))
        assert suspected() == expected
