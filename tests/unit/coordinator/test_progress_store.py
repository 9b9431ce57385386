"""What is kept of reports, and whose are refused."""

import pytest

from tests.support.jobs import NOW, UID, Scene, job
from trainyard.api.agent_protocol import RankReport, Report
from trainyard.api.status import ConditionType
from trainyard.coordinator.progress_store import LONGEST_SECONDS, SHORTEST_SECONDS, STATUS_SECONDS, Board
from trainyard.coordinator.rejections import RefusedError, Why
from trainyard.coordinator.tokens import PodIdentity
from trainyard.domain.state.snapshot import JobView, PodView, RankProgress


class Desk:
    """A board over one job of three workers with two ranks each, in attempt 2."""

    def __init__(self, scene: Scene | None = None) -> None:
        self.scene = scene or job(3, processesPerReplica=2).running(attempt=2)
        self.news: list[tuple[str, float]] = []
        self.board = Board(self.find, lambda uid, seconds: self.news.append((uid, seconds)), lambda: NOW)

    def find(self, sender: PodIdentity) -> tuple[PodView, JobView] | None:
        pod = next((pod for pod in self.scene.pods if pod.uid == sender.uid), None)
        return (pod, self.scene.job) if pod else None

    def tell(self, uid: str, attempt: int = 2, **steps: int) -> float:
        ranks = {name.removeprefix("r"): RankReport(step=step) for name, step in steps.items()}
        return self.board.accept(PodIdentity("lab", "pod", uid), Report(attempt=attempt, ranks=ranks))

    def refused(self, uid: str, attempt: int = 2, **steps: int) -> Why:
        before = self.board.of(UID)
        with pytest.raises(RefusedError) as refused:
            self.tell(uid, attempt, **steps)
        assert (self.board.of(UID), self.news) == (before, [])
        return refused.value.why


def test_a_pod_tells_of_its_own_ranks() -> None:
    desk = Desk()
    assert desk.tell("pod-1-2", r2=7, r3=8) == SHORTEST_SECONDS
    (report,) = desk.board.of(UID)
    assert (report.attempt, report.index, report.at) == (2, 1, NOW)
    assert [(rank.rank, rank.step) for rank in report.ranks] == [(2, 7), (3, 8)]
    assert desk.news == [(UID, STATUS_SECONDS)]


def test_all_that_is_told_of_a_rank_is_kept() -> None:
    desk = Desk()
    said = RankReport(step=7, phase="evaluate", total=9, loss=0.5, seconds=0.4, own=0.3, stack=["a.py:3 in f"])
    desk.board.accept(PodIdentity("lab", "pod", "pod-1-2"), Report(attempt=2, ranks={"2": said}))
    (report,) = desk.board.of(UID)
    assert report.ranks == (RankProgress(2, 7, "evaluate", 9, 0.5, 0.4, ("a.py:3 in f",), own_seconds=0.3),)


def test_the_same_again_is_no_news_and_a_newer_one_takes_its_place() -> None:
    desk = Desk()
    desk.tell("pod-1-2", r2=7)
    desk.tell("pod-1-2", r2=7)
    assert len(desk.news) == 1
    desk.tell("pod-1-2", r2=8)
    desk.tell("pod-0-2", r0=9)
    assert len(desk.news) == 3
    assert sorted(rank.step or 0 for report in desk.board.of(UID) for rank in report.ranks) == [8, 9]


def test_of_others_ranks_a_pod_may_not_speak() -> None:
    assert Desk().refused("pod-1-2", r2=7, r4=7) is Why.FOREIGN_RANK


def test_a_pod_of_nobody_is_not_heard() -> None:
    assert Desk().refused("another", r0=7) is Why.UNKNOWN_POD


def test_a_report_of_an_earlier_attempt_comes_too_late() -> None:
    assert Desk().refused("pod-1-2", attempt=1, r2=7) is Why.STALE_ATTEMPT
    assert Desk().refused("pod-1-2", attempt=3, r2=7) is Why.STALE_ATTEMPT


def test_so_does_a_pod_of_an_earlier_attempt() -> None:
    scene = job(3, processesPerReplica=2).running(attempt=2).with_status(attempt=3)
    assert Desk(scene).refused("pod-1-2", attempt=2, r2=7) is Why.STALE_ATTEMPT


def test_a_finished_job_is_not_told_of_any_more() -> None:
    scene = job(3, processesPerReplica=2).running(attempt=2).finished(ConditionType.COMPLETE)
    assert Desk(scene).refused("pod-1-2", r2=7) is Why.STALE_ATTEMPT


def test_a_job_that_is_gone_is_forgotten() -> None:
    desk = Desk()
    desk.tell("pod-1-2", r2=7)
    desk.board.forget(UID)
    desk.board.forget(UID)
    assert (desk.board.of(UID), desk.board.workers) == ([], 0)


def test_the_more_tell_the_longer_each_is_told_to_wait() -> None:
    desk = Desk(job(1).running(attempt=2))
    pauses = []
    for count in (100, 4_000, 40_000):
        desk.board._reports = {str(each): {0: None} for each in range(count)}  # type: ignore[dict-item]  # only counted
        pauses.append(desk.tell("pod-0-2", r0=count))
    assert pauses == [SHORTEST_SECONDS, pytest.approx(20, abs=0.1), LONGEST_SECONDS]
    assert [seconds for _, seconds in desk.news] == [pytest.approx(wait, abs=0.5) for wait in (20, 300, 300)]
