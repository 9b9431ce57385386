"""The progress in the status, from the reports of the workers' agents."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, Scene, ago, job, stored
from trainyard.api.progress import Checkpointed, MeasuredProgress, Progress
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import RankProgress, WorkerReport


def reported(scene: Scene, *ranks: RankProgress, attempt: int | None = None) -> Progress | None:
    """Return the progress in the planned status, when each worker reports one rank."""
    reports = [
        WorkerReport(scene.status.attempt if attempt is None else attempt, index, (rank,))
        for index, rank in enumerate(ranks)
    ]
    status = plan(replace(scene.snapshot, reports=reports), NOW).status
    assert stored(status) == status
    return status.progress


def test_no_progress_without_reports() -> None:
    assert reported(job(2).running()) is None


def test_the_group_is_as_far_as_its_last() -> None:
    seen = reported(
        job(3).running(),
        RankProgress(0, 12, "train", 90, 0.5, 0.2),
        RankProgress(0, 11, "checkpoint", None, 0.25, 0.4),
        RankProgress(0, 12, "train", 100, None, 0.3),
    )
    paces = {"step_seconds": 0.3, "fastest_rank_seconds": 0.2, "slowest_rank_seconds": 0.4}
    assert seen == Progress(
        step=11, total_steps=100, percent=11, phase="checkpoint", loss=0.375, **paces, updated_at=NOW
    )


@pytest.mark.parametrize(
    ("own", "spread"),
    [
        ((0.11, 0.127, 0.2), (0.11, 0.2)),
        # Where one rank does not report it, only step times can be compared.
        ((0.11, None, 0.2), (0.3, 0.3)),
        ((0.127,), (None, None)),
        ((0.11, 0.2), (0.11, 0.2)),
    ],
)
def test_how_far_ranks_are_apart(own: tuple[float | None, ...], spread: tuple[float | None, float | None]) -> None:
    ranks = [RankProgress(0, 5, "train", step_seconds=0.3, compute_seconds=seconds) for seconds in own]
    seen = reported(job(len(ranks)).running(), *ranks)
    assert seen is not None
    assert (seen.fastest_rank_seconds, seen.slowest_rank_seconds) == spread


def test_measurements_of_ranks_are_combined() -> None:
    names = tuple(MeasuredProgress.model_fields)
    seen = reported(
        job(3).running(),
        RankProgress(
            0,
            1,
            "train",
            measured=dict(zip(names, (500.0, 8000.0, 0.4, 2.0, 0.25, 0.0, 0.125, 1e9, 0.1, 2e8), strict=True)),
        ),
        RankProgress(
            0,
            1,
            "train",
            measured=dict(zip(names, (524.0, 8384.0, 0.5, 2.0, 0.75, 0.5, 0.375, 3e9, 0.08, 3e8), strict=True)),
        ),
        RankProgress(0, 1, "train"),
    )
    assert seen is not None
    assert seen.measured == MeasuredProgress(
        samples_per_second=1024,
        tokens_per_second=16_380,
        mfu=0.45,
        grad_norm=2,
        communication_share=0.5,
        data_share=0.25,
        checkpoint_share=0.25,
        memory_bytes=3e9,
        gemm_seconds=0.1,
        warm_bytes=5e8,
    )


def test_newest_checkpoint_outlives_its_attempt() -> None:
    def after(step: float, before: Progress | None = None, attempt: int = 1) -> Progress:
        scene = job(2).running(attempt=attempt).with_status(progress=before)
        knows = RankProgress(
            0, 107, "train", measured={"checkpoint_step": step, "checkpoint_seconds": 4.25} if step else {}
        )
        seen = reported(scene, knows, RankProgress(0, 107, "train"), attempt=attempt)
        assert seen is not None
        return seen

    first = after(100)
    assert first.checkpoint == Checkpointed(step=100, seconds=4.25, time=NOW)
    assert first.measured is None
    earlier = first.evolve(checkpoint=first.checkpoint.evolve(time=ago(60)))
    assert after(100, earlier).checkpoint == earlier.checkpoint, "a repeated report is no newer"
    assert after(0, earlier, attempt=2).checkpoint == earlier.checkpoint, "none was made yet in this attempt"
    assert after(200, earlier).checkpoint == Checkpointed(step=200, seconds=4.25, time=NOW)


def test_phase_is_reported_before_first_step() -> None:
    seen = reported(job(2).running(), RankProgress(0, None, "compile"), RankProgress(0, 3, "train"))
    assert seen is not None
    assert (seen.step, seen.phase) == (3, "compile")


def test_what_has_not_changed_keeps_its_time() -> None:
    before = Progress(step=7, phase="train", loss=0.5, updated_at=ago(100))
    scene = job(1).running().with_status(progress=before)
    assert reported(scene, RankProgress(0, 7, "train", loss=0.5)) == before
    changed = reported(scene, RankProgress(0, 7, "train", loss=0.4))
    assert changed is not None
    assert (changed.loss, changed.updated_at) == (0.4, NOW)


def test_progress_of_earlier_attempt_is_kept() -> None:
    before = Progress(step=7, phase="train", updated_at=ago(100))
    scene = job(1).running(attempt=2).with_status(progress=before)
    assert reported(scene, RankProgress(0, 8, "train"), attempt=1) == before
    assert (resumed := reported(scene, RankProgress(0, 5, "train")))
    assert resumed.step == 5


def test_finished_job_keeps_last_progress() -> None:
    ended = reported(job(1).running().succeeded(0), RankProgress(0, 90, "train", 90))
    assert ended is not None
    assert ended.step == 90
    failed = reported(job(1, recovery={"maxRestarts": 0}).running().failed(0), RankProgress(0, 60, "train", 90))
    assert failed is not None
    assert failed.step == 60


def test_finished_job_ignores_reports() -> None:
    assert reported(job(1).running().finished(), RankProgress(0, 90, "train")) is None


@pytest.mark.parametrize("loss", [1e100, -1e100, 0.1 + 0.2, 1e-300])
def test_losses_are_whole_after_a_round_trip(loss: float) -> None:
    seen = reported(job(3).running(), *[RankProgress(0, 1, "train", loss=loss)] * 3)
    assert seen is not None
    assert seen.loss == pytest.approx(loss, rel=1e-5)


def test_percentage_is_rounded_down() -> None:
    seen = reported(job(1).running(), RankProgress(0, 199, "train", total_steps=200))
    assert seen is not None
    assert seen.percent == 99


def test_first_step_is_further_than_none() -> None:
    seen = reported(job(2).running(), RankProgress(0, 0, "train"), RankProgress(0, None, "compile"))
    assert seen is not None
    assert seen.phase == "compile"


def test_steps_beyond_the_total_are_100_percent() -> None:
    seen = reported(job(1).running(), RankProgress(0, 300, "train", total_steps=200))
    assert seen is not None
    assert seen.percent == 100


@pytest.mark.parametrize("steps", [(100, 200), (200, 100)])
def test_newest_checkpoint_of_all_ranks_counts(steps: tuple[float, float]) -> None:
    ranks = [RankProgress(0, 207, "train", measured={"checkpoint_step": step}) for step in steps]
    seen = reported(job(2).running(), *ranks)
    assert seen is not None
    assert seen.checkpoint == Checkpointed(step=200, seconds=None, time=NOW)
