"""What is counted of jobs: each end of an attempt once, by its cause."""

import pytest
from prometheus_client import CollectorRegistry

from tests.support.jobs import NOW, Scene, ago, job
from tests.unit.controller.raw_job import RAW
from trainyard.api.base import MOST
from trainyard.api.internal_status import Group
from trainyard.api.progress import Goodput, LostSeconds, MeasuredProgress, Progress, Straggler
from trainyard.api.status import Avoidance, Phase, Restarts, SuspectNode, TrainingJobStatus
from trainyard.controller.metrics.collector import CacheMetrics, JobMetrics
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
        (ALL.wishing(replicas=5), "resize"),
    ],
)
def test_each_restart_has_one_cause(scene: Scene, cause: str) -> None:
    registry = CollectorRegistry()
    JobMetrics(registry).moved(scene.job, plan(scene.snapshot, NOW).status)
    causes = ("failure", "hang", "disruption", "resize")
    counted = {each: registry.get_sample_value("trainyard_restarts_total", {"cause": each}) for each in causes}
    assert counted == {each: float(each == cause) for each in causes}


def test_ranks_that_are_slow_are_told_of_by_job_until_they_or_it_are_gone() -> None:
    registry, caches = CollectorRegistry(), Caches.empty()
    acting = True
    CacheMetrics(caches, registry, acting=lambda: acting)
    name = "trainyard_job_straggling_ranks"

    def told() -> float | None:
        return registry.get_sample_value(name, {"namespace": "lab", "name": "job"})

    def know(version: int, *slow: Straggler) -> None:
        status = TrainingJobStatus().evolve(stragglers=[*slow])
        caches.of("lab").jobs.apply(job_record(RAW).with_status(status, version))

    know(8)
    assert told() is None, "as a rule there is nothing to tell, and no job's name is told"
    slow = Straggler(rank=3, pod="job-worker-3-1", step_seconds=0.4, factor=2.0, since=NOW)
    know(9, slow, slow.evolve(rank=4, confirmed=True))
    assert told() == 1.0, "the other has not been slow for long enough"
    acting = False
    assert told() is None
    acting = True
    caches.of("lab").jobs.remove("1")
    assert told() is None


@pytest.mark.parametrize(("phase", "told"), [(Phase.RUNNING, 2.0), (Phase.RESTARTING, 2.0), (Phase.FAILED, None)])
def test_nodes_that_a_job_keeps_away_from(phase: Phase, told: float | None) -> None:
    registry, caches = CollectorRegistry(), Caches.empty()
    CacheMetrics(caches, registry, lambda: True)
    nodes = [SuspectNode(name=each, avoidance=each, until=NOW) for each in Avoidance]
    caches.of("lab").jobs.apply(
        job_record(RAW).with_status(TrainingJobStatus().evolve(phase=phase, suspect_nodes=nodes), 9)
    )
    about = {"namespace": "lab", "name": "job"}
    assert registry.get_sample_value("trainyard_job_avoided_nodes", about) == told


def test_numbers_beyond_all_that_can_be_do_no_harm() -> None:
    scene = ALL.with_status(restarts=Restarts(failures=MOST)).failed(1, exit_code=91)
    JobMetrics(CollectorRegistry()).moved(scene.job, plan(scene.snapshot, NOW).status)


def test_goodput_is_told_by_whoever_acts_as_long_as_there_is_the_job() -> None:
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
    ("phase", "told"),
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
def test_how_far_a_job_is_and_how_fast_it_gets_on(phase: Phase, told: dict[str, float]) -> None:
    """Its speed while it runs; nothing any more once it has ended, or while it rests."""
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
        **told,
        "attempt": 1,
    }
