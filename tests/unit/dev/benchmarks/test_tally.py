from typing import Any

import pytest

from dev.benchmarks.scale.tally import Milestone, Tally


def pod(uid: str, phase: str = "Pending", *, deleting: bool = False) -> dict[str, Any]:
    return {"metadata": {"uid": uid} | ({"deletionTimestamp": "now"} if deleting else {}), "status": {"phase": phase}}


def job(uid: str, *, runs: bool) -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "runs": runs}


@pytest.fixture
def tally() -> Tally:
    return Tally(pods=2, jobs=1, says=lambda job: bool(job["runs"]))


def test_each_milestone_is_recorded_once_with_its_time(tally: Tally) -> None:
    reported = [
        tally.pod("ADDED", pod("p"), 1.0),
        tally.pod("ADDED", pod("q"), 2.0),
        tally.pod("MODIFIED", pod("p", "Running"), 3.0),
        tally.pod("MODIFIED", pod("q", "Running"), 4.0),
        tally.pod("MODIFIED", pod("q", "Running"), 5.0),
        tally.job("ADDED", job("j", runs=False), 6.0),
        tally.job("MODIFIED", job("j", runs=True), 7.0),
    ]
    assert reported == [[], ["created"], [], ["running"], [], [], ["status"]]
    assert {name: milestone.at for name, milestone in tally.milestones.items()} == {
        "created": 2.0,
        "running": 4.0,
        "status": 7.0,
    }


@pytest.mark.parametrize(
    "event",
    [
        ("DELETED", pod("p", "Running")),
        ("MODIFIED", pod("p", "Failed")),
        ("MODIFIED", pod("p", "Running", deleting=True)),
    ],
)
def test_finished_or_terminating_pod_does_not_count(tally: Tally, event: tuple[str, dict[str, Any]]) -> None:
    tally.pod("ADDED", pod("p", "Running"), 1.0)
    assert tally.numbers() == {"created": 1, "running": 1, "status": 0}
    tally.pod(*event, 2.0)
    assert tally.numbers() == {"created": 0, "running": 0, "status": 0}


def test_recovery_counts_only_after_all_pods_were_lost(tally: Tally) -> None:
    for uid in "pq":
        tally.pod("ADDED", pod(uid, "Running"), 1.0)
    tally.again()
    assert tally.pod("MODIFIED", pod("q", "Running"), 2.0) == []
    assert tally.pod("MODIFIED", pod("p", "Failed"), 3.0) == []
    assert tally.pod("ADDED", pod("r"), 4.0) == ["created"]
    assert tally.pod("MODIFIED", pod("r", "Running"), 5.0) == ["running"]


def test_job_can_lose_its_running_state(tally: Tally) -> None:
    tally.job("ADDED", job("j", runs=True), 1.0)
    tally.again()
    assert tally.job("MODIFIED", job("j", runs=False), 2.0) == []
    assert tally.job("MODIFIED", job("j", runs=True), 3.0) == ["status"]


def test_milestone_can_be_reached_in_one_event() -> None:
    milestone = Milestone(3)
    assert milestone.look(5, 1.0)
    assert milestone.at == 1.0
