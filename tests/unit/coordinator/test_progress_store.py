"""What is kept of reports, and whose are refused."""

import pytest

from tests.support.jobs import NOW, UID, Scene, job
from trainyard.api.status import ConditionType
from trainyard.coordinator.progress_store import (
    MAX_REPORT_INTERVAL_SECONDS,
    MIN_REPORT_INTERVAL_SECONDS,
    MIN_STATUS_INTERVAL_SECONDS,
    ProgressStore,
)
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.coordinator.reports import RankReport, Report
from trainyard.coordinator.tokens import PodIdentity
from trainyard.domain.state.snapshot import JobView, PodView, RankProgress


class Desk:
    """A progress_store over one job of three workers with two ranks each, in attempt 2."""

    def __init__(self, scene: Scene | None = None) -> None:
        self.scene = scene or job(3, processesPerReplica=2).running(attempt=2)
        self.changes: list[tuple[str, float]] = []
        self.progress_store = ProgressStore(
            self.find, lambda uid, seconds: self.changes.append((uid, seconds)), lambda: NOW
        )

    def find(self, sender: PodIdentity) -> tuple[PodView, JobView] | None:
        pod = next((pod for pod in self.scene.pods if pod.uid == sender.uid), None)
        return (pod, self.scene.job) if pod else None

    def tell(self, uid: str, attempt: int = 2, **steps: int) -> float:
        ranks = {name.removeprefix("r"): RankReport(step=step) for name, step in steps.items()}
        return self.progress_store.accept(PodIdentity("lab", "pod", uid), Report(attempt=attempt, ranks=ranks))

    def refused(self, uid: str, attempt: int = 2, **steps: int) -> RejectionReason:
        before = self.progress_store.of(UID)
        with pytest.raises(RefusedError) as refused:
            self.tell(uid, attempt, **steps)
        assert (self.progress_store.of(UID), self.changes) == (before, [])
        return refused.value.reason


def test_pod_reports_its_own_ranks() -> None:
    desk = Desk()
    assert desk.tell("pod-1-2", r2=7, r3=8) == MIN_REPORT_INTERVAL_SECONDS
    (report,) = desk.progress_store.of(UID)
    assert (report.attempt, report.index, report.at) == (2, 1, NOW)
    assert [(rank.rank, rank.step) for rank in report.ranks] == [(2, 7), (3, 8)]
    assert desk.changes == [(UID, MIN_STATUS_INTERVAL_SECONDS)]


def test_all_fields_of_a_rank_are_stored() -> None:
    desk = Desk()
    said = RankReport(step=7, phase="evaluate", total=9, loss=0.5, seconds=0.4, own=0.3, stack=["a.py:3 in f"])
    desk.progress_store.accept(PodIdentity("lab", "pod", "pod-1-2"), Report(attempt=2, ranks={"2": said}))
    (report,) = desk.progress_store.of(UID)
    assert report.ranks == (RankProgress(2, 7, "evaluate", 9, 0.5, 0.4, ("a.py:3 in f",), own_seconds=0.3),)


def test_repeated_report_is_no_change() -> None:
    desk = Desk()
    desk.tell("pod-1-2", r2=7)
    desk.tell("pod-1-2", r2=7)
    assert len(desk.changes) == 1
    desk.tell("pod-1-2", r2=8)
    desk.tell("pod-0-2", r0=9)
    assert len(desk.changes) == 3
    assert sorted(rank.step or 0 for report in desk.progress_store.of(UID) for rank in report.ranks) == [8, 9]


def test_report_of_foreign_rank_is_rejected() -> None:
    assert Desk().refused("pod-1-2", r2=7, r4=7) is RejectionReason.FOREIGN_RANK


def test_unknown_pod_is_rejected() -> None:
    assert Desk().refused("another", r0=7) is RejectionReason.UNKNOWN_POD


def test_report_of_another_attempt_is_rejected() -> None:
    assert Desk().refused("pod-1-2", attempt=1, r2=7) is RejectionReason.STALE_ATTEMPT
    assert Desk().refused("pod-1-2", attempt=3, r2=7) is RejectionReason.STALE_ATTEMPT


def test_replaced_pod_is_rejected() -> None:
    scene = job(3, processesPerReplica=2).running(attempt=2).with_status(attempt=3)
    assert Desk(scene).refused("pod-1-2", attempt=2, r2=7) is RejectionReason.STALE_ATTEMPT


def test_report_for_finished_job_is_rejected() -> None:
    scene = job(3, processesPerReplica=2).running(attempt=2).finished(ConditionType.COMPLETE)
    assert Desk(scene).refused("pod-1-2", r2=7) is RejectionReason.STALE_ATTEMPT


def test_deleted_job_is_forgotten() -> None:
    desk = Desk()
    desk.tell("pod-1-2", r2=7)
    desk.progress_store.forget(UID)
    desk.progress_store.forget(UID)
    assert (desk.progress_store.of(UID), desk.progress_store.workers) == ([], 0)


def test_report_interval_grows_with_workers() -> None:
    desk = Desk(job(1).running(attempt=2))
    pauses = []
    for count in (100, 4_000, 40_000):
        desk.progress_store._reports = {str(each): {0: None} for each in range(count)}  # type: ignore[dict-item]  # only counted
        pauses.append(desk.tell("pod-0-2", r0=count))
    assert pauses == [MIN_REPORT_INTERVAL_SECONDS, pytest.approx(20, abs=0.1), MAX_REPORT_INTERVAL_SECONDS]
    assert [seconds for _, seconds in desk.changes] == [pytest.approx(wait, abs=0.5) for wait in (20, 300, 300)]
