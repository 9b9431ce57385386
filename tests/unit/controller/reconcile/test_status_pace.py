"""How often a status is written."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, job
from tests.support.timers import FakeTimers
from trainyard.api.status import Phase, Restarts, TrainingJobStatus
from trainyard.controller.reconcile.status_pace import BETWEEN, BURST, LONGEST, PERIOD, SHARE, StatusPace
from trainyard.domain.plan import plan
from trainyard.domain.status.report import is_news

STARTING = plan(job(3).created().snapshot, NOW).status
SNAPSHOT = replace(job(3).created().snapshot.job, status=STARTING)
NEWS = STARTING.evolve(phase=Phase.RUNNING)
MORE_READY = STARTING.evolve(ready="1/3", ready_replicas=1)


@pytest.mark.parametrize(
    ("after", "news"),
    [
        pytest.param(STARTING, False, id="nothing changed"),
        pytest.param(MORE_READY, False, id="one more is ready"),
        pytest.param(
            plan(job(3).created().waiting(0, "Unschedulable", scheduled=False).snapshot, NOW).status,
            False,
            id="another reason",
        ),
        pytest.param(STARTING.evolve(observed_generation=2), True, id="a change of the spec was looked at"),
        pytest.param(STARTING.evolve(phase=Phase.RUNNING), True, id="another phase"),
        pytest.param(STARTING.evolve(attempt=2), True, id="another attempt"),
        pytest.param(STARTING.evolve(launched_attempt=2), True, id="all pods of an attempt are there"),
        pytest.param(STARTING.evolve(restarts=Restarts(failures=1)), True, id="a failure was counted"),
        pytest.param(plan(job(3).running().snapshot, NOW).status, True, id="all run"),
    ],
)
def test_what_is_news(after: TrainingJobStatus, *, news: bool) -> None:
    assert is_news(SNAPSHOT, after) is news


def test_counts_are_written_once_a_second() -> None:
    timers = FakeTimers()
    pace = StatusPace(timers.time)
    assert pace.wait(SNAPSHOT, MORE_READY) == 0
    pace.hold(SNAPSHOT.uid)
    assert pace.wait(SNAPSHOT, MORE_READY) == pytest.approx(PERIOD)
    timers.advance(0.75)
    assert pace.wait(SNAPSHOT, MORE_READY) == pytest.approx(PERIOD - 0.75)
    timers.advance(0.25)
    assert pace.wait(SNAPSHOT, MORE_READY) == 0


def test_the_counts_of_many_jobs_share_twenty_writes_a_second() -> None:
    timers = FakeTimers()
    pace = StatusPace(timers.time)
    jobs = [replace(SNAPSHOT, uid=f"job-{number}") for number in range(500)]
    for each in jobs:
        pace.hold(each.uid)
    waits = [pace.wait(each, MORE_READY) for each in jobs]
    assert waits[0] == pytest.approx(PERIOD)
    assert waits[60] == pytest.approx(60 * SHARE)
    assert waits[-1] == pytest.approx(LONGEST)
    for each in jobs[:-1]:
        pace.told(each.uid)
    assert pace.wait(jobs[-1], MORE_READY) == pytest.approx(PERIOD)


def test_jobs_that_were_acted_upon_count_before_they_have_something_to_tell() -> None:
    """On a busy control plane their pods are seen seconds later: each would otherwise find nobody else waiting, and be written at once."""
    timers = FakeTimers()
    pace = StatusPace(timers.time)
    jobs = [replace(SNAPSHOT, uid=f"job-{number}") for number in range(200)]
    for each in jobs:
        pace.acted(each.uid)
    timers.advance(4.0)
    assert pace.wait(jobs[0], MORE_READY) == pytest.approx(199 * SHARE - 4.0)
    for each in jobs:
        pace.told(each.uid)
    assert pace.wait(jobs[0], MORE_READY) == 0


def test_news_waits_for_nothing_that_was_written_before() -> None:
    pace = StatusPace(FakeTimers().time)
    pace.hold(SNAPSHOT.uid)
    assert pace.wait(SNAPSHOT, NEWS) == 0


def test_a_job_that_has_news_all_the_time_is_written_twice_a_second() -> None:
    timers = FakeTimers()
    pace, other, written = StatusPace(timers.time), replace(SNAPSHOT, uid="another"), 0
    for _ in range(100 * 60):
        if pace.wait(SNAPSHOT, NEWS) == 0:
            pace.hold(SNAPSHOT.uid)
            written += 1
        assert pace.wait(other, NEWS) == 0
        timers.advance(0.01)
    assert written == pytest.approx(BURST + 60 / BETWEEN, abs=2)
    assert 0 < pace.wait(SNAPSHOT, NEWS) <= BETWEEN
    timers.advance(BURST * BETWEEN)
    for _ in range(BURST):
        assert pace.wait(SNAPSHOT, NEWS) == 0
        pace.hold(SNAPSHOT.uid)


def test_a_job_that_is_gone_leaves_nothing_behind() -> None:
    pace = StatusPace(FakeTimers().time)
    pace.hold(SNAPSHOT.uid)
    pace.forget(SNAPSHOT.uid)
    pace.forget(SNAPSHOT.uid)
    assert pace.wait(SNAPSHOT, MORE_READY) == 0


def test_the_first_status_is_no_news_unless_it_is() -> None:
    new = replace(SNAPSHOT, status=TrainingJobStatus())
    assert not is_news(new, plan(job(3).started().snapshot, NOW).status)
    assert is_news(new, STARTING)


def test_that_the_pod_of_a_lone_worker_is_there_is_told_with_what_becomes_of_it() -> None:
    """A thousand jobs of one worker: half of the writes. Lost before that, it is made again."""
    new = job(1).started().snapshot.job
    assert not is_news(new, plan(job(1).created().snapshot, NOW).status)
    assert is_news(new, plan(job(1).running().snapshot, NOW).status)
