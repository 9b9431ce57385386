"""Which reports are stored, and which are rejected."""

import pytest

from tests.support.jobs import NOW, UID, Scene, job
from trainyard.api.agent_protocol import NetworkReport, RankReport, Report, Transport
from trainyard.api.internal_status import WorkerOrder
from trainyard.api.status import ConditionType
from trainyard.coordinator.progress_store import (
    MAX_REPORT_INTERVAL_SECONDS,
    MIN_REPORT_INTERVAL_SECONDS,
    MIN_STATUS_INTERVAL_SECONDS,
    ProgressStore,
)
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.coordinator.tokens import PodIdentity
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import Network, PodView, RankProgress


class StoreOfOneJob:
    """A progress store with one job of three workers with two ranks each, in attempt 2."""

    def __init__(self, scene: Scene | None = None) -> None:
        self.scene = scene or job(3, processesPerReplica=2).running(attempt=2)
        self.changes: list[tuple[str, float]] = []
        self.progress_store = ProgressStore(
            self.find, lambda uid, seconds: self.changes.append((uid, seconds)), lambda: NOW
        )

    def find(self, sender: PodIdentity) -> tuple[PodView, JobView] | None:
        pod = next((pod for pod in self.scene.pods if pod.uid == sender.uid), None)
        return (pod, self.scene.job) if pod else None

    def report(self, uid: str, attempt: int = 2, **steps: int) -> float:
        ranks = {name.removeprefix("r"): RankReport(step=step) for name, step in steps.items()}
        return self.progress_store.accept(PodIdentity("lab", "pod", uid), Report(attempt=attempt, ranks=ranks))

    def refused(self, uid: str, attempt: int = 2, **steps: int) -> RejectionReason:
        before = self.progress_store.of(UID)
        with pytest.raises(RefusedError) as refused:
            self.report(uid, attempt, **steps)
        assert (self.progress_store.of(UID), self.changes) == (before, [])
        return refused.value.reason


def test_pod_reports_its_own_ranks() -> None:
    store = StoreOfOneJob()
    assert store.report("pod-1-2", r2=7, r3=8) == MIN_REPORT_INTERVAL_SECONDS
    (report,) = store.progress_store.of(UID)
    assert (report.attempt, report.index, report.at) == (2, 1, NOW)
    assert [(rank.rank, rank.step) for rank in report.ranks] == [(2, 7), (3, 8)]
    assert store.changes == [(UID, MIN_STATUS_INTERVAL_SECONDS)]


def test_all_fields_of_a_rank_are_stored() -> None:
    store = StoreOfOneJob()
    reported = RankReport(step=7, phase="evaluate", total=9, loss=0.5, seconds=0.4, own=0.3, stack=["a.py:3 in f"])
    store.progress_store.accept(PodIdentity("lab", "pod", "pod-1-2"), Report(attempt=2, ranks={"2": reported}))
    (report,) = store.progress_store.of(UID)
    assert report.ranks == (RankProgress(2, 7, "evaluate", 9, 0.5, 0.4, ("a.py:3 in f",), compute_seconds=0.3),)


@pytest.mark.parametrize(
    ("transport", "uses_sockets"),
    [(Transport.SOCKETS, True), (Transport.INFINIBAND, False), (Transport.ROCE, False), (Transport.PLUGIN, False)],
)
def test_network_is_that_of_worker_0(transport: Transport, *, uses_sockets: bool) -> None:
    store, report = StoreOfOneJob(), NetworkReport(transport=transport, name="X")
    for index in range(2):
        sender = PodIdentity("lab", "pod", f"pod-{index}-2")
        store.progress_store.accept(sender, Report(attempt=2, ranks={}, network=report))
    assert [each.network for each in store.progress_store.of(UID)] == [Network(uses_sockets, "X"), None]


def test_repeated_report_is_no_change() -> None:
    store = StoreOfOneJob()
    store.report("pod-1-2", r2=7)
    store.report("pod-1-2", r2=7)
    assert len(store.changes) == 1
    store.report("pod-1-2", r2=8)
    store.report("pod-0-2", r0=9)
    assert len(store.changes) == 3
    assert sorted(rank.step or 0 for report in store.progress_store.of(UID) for rank in report.ranks) == [8, 9]


def test_report_of_foreign_rank_is_rejected() -> None:
    assert StoreOfOneJob().refused("pod-1-2", r2=7, r4=7) is RejectionReason.FOREIGN_RANK


def test_unknown_pod_is_rejected() -> None:
    assert StoreOfOneJob().refused("another", r0=7) is RejectionReason.UNKNOWN_POD


def test_report_of_another_attempt_is_rejected() -> None:
    assert StoreOfOneJob().refused("pod-1-2", attempt=1, r2=7) is RejectionReason.STALE_ATTEMPT
    assert StoreOfOneJob().refused("pod-1-2", attempt=3, r2=7) is RejectionReason.STALE_ATTEMPT


def test_replaced_pod_is_rejected() -> None:
    scene = job(3, processesPerReplica=2).running(attempt=2).with_status(attempt=3)
    assert StoreOfOneJob(scene).refused("pod-1-2", attempt=2, r2=7) is RejectionReason.STALE_ATTEMPT


def test_report_for_finished_job_is_rejected() -> None:
    scene = job(3, processesPerReplica=2).running(attempt=2).finished(ConditionType.COMPLETE)
    assert StoreOfOneJob(scene).refused("pod-1-2", r2=7) is RejectionReason.STALE_ATTEMPT


def test_deleted_job_is_forgotten() -> None:
    store = StoreOfOneJob()
    store.report("pod-1-2", r2=7)
    store.progress_store.forget(UID)
    store.progress_store.forget(UID)
    assert (store.progress_store.of(UID), store.progress_store.workers) == ([], 0)


def test_report_interval_grows_with_workers() -> None:
    store = StoreOfOneJob(job(1).running(attempt=2))
    pauses = []
    for count in (100, 4_000, 40_000):
        store.progress_store._reports = {str(each): {0: None} for each in range(count)}  # type: ignore[dict-item]  # only counted
        store.progress_store.workers = count
        pauses.append(store.report("pod-0-2", r0=count))
    assert pauses == [MIN_REPORT_INTERVAL_SECONDS, pytest.approx(20, abs=0.1), MAX_REPORT_INTERVAL_SECONDS]
    assert [seconds for _, seconds in store.changes] == [pytest.approx(wait, abs=0.5) for wait in (20, 300, 300)]


def test_reported_ranks_follow_the_order_of_workers() -> None:
    scene = job(3, processesPerReplica=2).running(attempt=2).with_status(worker_order=WorkerOrder(workers=[0, 2, 1]))
    store = StoreOfOneJob(scene)
    assert store.refused("pod-1-2", r2=7) is RejectionReason.FOREIGN_RANK
    store.report("pod-1-2", r4=7, r5=8)
    (report,) = store.progress_store.of(UID)
    assert (report.index, [rank.rank for rank in report.ranks]) == (1, [4, 5])
