"""Where goodput is settled: with what is stored anyway, and by nothing else."""

from dataclasses import replace
from datetime import timedelta

from tests.support.jobs import NOW, Scene, ago, job, stored
from trainyard.api.progress import Goodput, LostSeconds
from trainyard.api.status import Phase, TrainingJobStatus
from trainyard.domain.plan import plan
from trainyard.domain.progress.goodput import step_reported_at
from trainyard.domain.state.worker_views import RankProgress, WorkerReport
from trainyard.domain.status.report import is_news

REPORTED = ago(20)
"""The job has been active for 300 seconds at NOW."""


def reported(scene: Scene, *steps: int, at: float = 0.0) -> TrainingJobStatus:
    """Return the planned status after each worker reported a step of one second, so many seconds ago."""
    reports = [
        WorkerReport(
            scene.status.attempt, index, (RankProgress(index, step, "train", None, None, 1.0, (), 1),), ago(at)
        )
        for index, step in enumerate(steps)
    ]
    decided = plan(replace(scene.snapshot, reports=reports), NOW)
    again = replace(scene.snapshot.job, status=decided.status)
    assert stored(decided.status) == decided.status
    assert decided.status == plan(replace(scene.snapshot, reports=reports), NOW).status
    assert not decided.status.goodput or not is_news(again, decided.status)
    return decided.status


def trained(scene: Scene, attempt: int = 1) -> Scene:
    """A hundred steps were reported when the job had been active for 280 seconds."""
    goodput = Goodput(
        ratio=0.3571,
        productive_seconds=100,
        lost_seconds=LostSeconds(startup=180),
        accounted_seconds=280,
        furthest_step=100,
        attempt=attempt,
        step=100,
    )
    return scene.with_status(goodput=goodput)


def lost(status: TrainingJobStatus) -> LostSeconds:
    assert status.goodput is not None
    return status.goodput.lost_seconds


def test_job_without_steps_has_no_goodput() -> None:
    assert plan(job(2).running().snapshot, NOW).status.goodput is None
    assert plan(job(2).running().failed(1).snapshot, NOW).status.goodput is None
    assert plan(job(2).running().succeeded(0, 1).snapshot, NOW).status.goodput is None


def test_report_counts_at_its_own_time() -> None:
    status = reported(job(1).running(), 100, at=20)
    assert status.goodput == trained(job(1)).status.goodput


def test_slowest_rank_dates_the_step() -> None:
    scene = job(3).running()
    steps = [(12, 1.5), (9, 4.0), (9, 3.25)]
    reports = [
        WorkerReport(1, index, (RankProgress(index, step, "train"), RankProgress(9, None, "start")), ago(seconds))
        for index, (step, seconds) in enumerate(steps)
    ]
    assert step_reported_at(replace(scene.snapshot, reports=reports), NOW) == ago(3.25)
    assert step_reported_at(scene.snapshot, NOW) == NOW


def test_unchanged_reports_are_not_written() -> None:
    scene = replace(job(1).running(), status=reported(job(1).running(), 100, at=20))
    later = plan(
        replace(
            scene.snapshot,
            reports=[WorkerReport(1, 0, (RankProgress(0, 100, "train", None, None, 1.0, (), 1),), REPORTED)],
        ),
        NOW + timedelta(seconds=60),
    )
    assert later.status == scene.status


def test_completion_accounts_for_remaining_time() -> None:
    status = reported(trained(job(1).running().succeeded(0)), 105, at=10)
    assert status.phase is Phase.COMPLETE
    assert (status.goodput and status.goodput.productive_seconds, lost(status).other) == (105, 5 + 10)
    failed = trained(job(1, recovery={"maxRestarts": 0}).running(attempt=2).failed(0))
    assert lost(plan(failed.snapshot, NOW).status).recovery == 20, "this attempt has done no step"


def test_suspension_accounts_for_remaining_time() -> None:
    suspended = plan(trained(job(1).running()).with_spec(lifecycle={"suspend": True}).snapshot, NOW).status
    assert (lost(suspended).other, suspended.internal.active_seconds) == (20, 300)
    scene = trained(job(1).running(attempt=2)).with_status(
        goodput=suspended.goodput, active_since=ago(30), active_seconds=300, attempt=2
    )
    status = reported(scene, 110, at=10)
    assert (lost(status).recovery, lost(status).other, lost(status).repeated) == (0, 20, 10), "in the 20 seconds since"


def test_next_attempt_accounts_for_the_last() -> None:
    fails = trained(job(1).running().failed(0, step=110))
    status = plan(fails.snapshot, NOW).status
    assert (status.attempt, status.goodput) == (2, fails.status.goodput)
    again = plan(trained(job(1).running(attempt=2).failed(0)).snapshot, NOW).status
    assert (again.attempt, lost(again).recovery) == (3, 20)


def test_resize_accounts_like_a_restart() -> None:
    before = trained(job(2).running())
    assert plan(before.with_spec(replicas=3).snapshot, NOW).status.goodput == before.status.goodput
