"""The rate of status writes."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, job
from tests.support.timers import FakeTimers
from trainyard.api.internal_status import Succeeded, WorkerRange
from trainyard.api.status import Phase, Restarts, TrainingJobStatus
from trainyard.controller.reconcile.status_pace import (
    COUNTS_PERIOD_PER_JOB_SECONDS,
    COUNTS_PERIOD_SECONDS,
    MAX_COUNTS_PERIOD_SECONDS,
    WRITE_BURST,
    WRITE_INTERVAL_SECONDS,
    StatusPace,
)
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
def test_changes_that_are_news(after: TrainingJobStatus, *, news: bool) -> None:
    assert is_news(SNAPSHOT, after) is news


def test_counts_are_written_once_a_second() -> None:
    timers = FakeTimers()
    pace = StatusPace(timers.time)
    assert pace.wait(SNAPSHOT, MORE_READY) == 0
    pace.mark_written(SNAPSHOT.uid)
    assert pace.wait(SNAPSHOT, MORE_READY) == pytest.approx(COUNTS_PERIOD_SECONDS)
    timers.advance(0.75)
    assert pace.wait(SNAPSHOT, MORE_READY) == pytest.approx(COUNTS_PERIOD_SECONDS - 0.75)
    timers.advance(0.25)
    assert pace.wait(SNAPSHOT, MORE_READY) == 0


def test_many_jobs_share_twenty_writes_a_second() -> None:
    timers = FakeTimers()
    pace = StatusPace(timers.time)
    jobs = [replace(SNAPSHOT, uid=f"job-{number}") for number in range(500)]
    for each in jobs:
        pace.mark_written(each.uid)
    waits = [pace.wait(each, MORE_READY) for each in jobs]
    assert waits[0] == pytest.approx(COUNTS_PERIOD_SECONDS)
    assert waits[60] == pytest.approx(60 * COUNTS_PERIOD_PER_JOB_SECONDS)
    assert waits[-1] == pytest.approx(MAX_COUNTS_PERIOD_SECONDS)
    for each in jobs[:-1]:
        pace.mark_clean(each.uid)
    assert pace.wait(jobs[-1], MORE_READY) == pytest.approx(COUNTS_PERIOD_SECONDS)


def test_acted_jobs_share_the_write_rate() -> None:
    """On a busy control plane their pods appear seconds later. Each job would find no other waiting, and be written at
    once.
    """
    timers = FakeTimers()
    pace = StatusPace(timers.time)
    jobs = [replace(SNAPSHOT, uid=f"job-{number}") for number in range(200)]
    for each in jobs:
        pace.mark_acted(each.uid)
    timers.advance(4.0)
    assert pace.wait(jobs[0], MORE_READY) == pytest.approx(199 * COUNTS_PERIOD_PER_JOB_SECONDS - 4.0)
    for each in jobs:
        pace.mark_clean(each.uid)
    assert pace.wait(jobs[0], MORE_READY) == 0


def test_news_is_written_at_once() -> None:
    pace = StatusPace(FakeTimers().time)
    pace.mark_written(SNAPSHOT.uid)
    assert pace.wait(SNAPSHOT, NEWS) == 0


def test_constant_news_is_written_twice_a_second() -> None:
    timers = FakeTimers()
    pace, other, written = StatusPace(timers.time), replace(SNAPSHOT, uid="another"), 0
    for _ in range(100 * 60):
        if pace.wait(SNAPSHOT, NEWS) == 0:
            pace.mark_written(SNAPSHOT.uid)
            written += 1
        assert pace.wait(other, NEWS) == 0
        timers.advance(0.01)
    assert written == pytest.approx(WRITE_BURST + 60 / WRITE_INTERVAL_SECONDS, abs=2)
    assert 0 < pace.wait(SNAPSHOT, NEWS) <= WRITE_INTERVAL_SECONDS
    timers.advance(WRITE_BURST * WRITE_INTERVAL_SECONDS)
    for _ in range(WRITE_BURST):
        assert pace.wait(SNAPSHOT, NEWS) == 0
        pace.mark_written(SNAPSHOT.uid)


def test_deleted_job_leaves_no_state() -> None:
    pace = StatusPace(FakeTimers().time)
    pace.mark_written(SNAPSHOT.uid)
    pace.forget(SNAPSHOT.uid)
    pace.forget(SNAPSHOT.uid)
    assert pace.wait(SNAPSHOT, MORE_READY) == 0


def test_first_status_may_be_news() -> None:
    new = replace(SNAPSHOT, status=TrainingJobStatus())
    assert not is_news(new, plan(job(3).started().snapshot, NOW).status)
    assert is_news(new, STARTING)


def test_created_pod_of_single_worker_is_no_news() -> None:
    """For a thousand jobs of one worker this saves half of the writes. A lost create is repeated."""
    new = job(1).started().snapshot.job
    assert not is_news(new, plan(job(1).created().snapshot, NOW).status)
    assert is_news(new, plan(job(1).running().snapshot, NOW).status)


def test_success_does_not_wait_for_other_jobs() -> None:
    timers = FakeTimers()
    pace = StatusPace(timers.time)
    for other in range(500):
        pace.mark_acted(f"job-{other}")
    pace.mark_written(SNAPSHOT.uid)
    succeeded = STARTING.evolve(succeeded=Succeeded(attempt=1, workers=[WorkerRange(first=1, last=1)]))
    assert pace.wait(SNAPSHOT, MORE_READY) > COUNTS_PERIOD_SECONDS
    assert pace.wait(SNAPSHOT, succeeded) == pytest.approx(COUNTS_PERIOD_SECONDS)
