"""When a worker ends before its time: what is charged, how long the next attempt waits, when it is enough."""

from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, ago, because, job, stored, summarize
from trainyard.api.internal_status import Backoff
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase, Restarts
from trainyard.domain.plan import plan

ALL = job(3).running()


@pytest.mark.parametrize(
    ("scene", "restarts"),
    [
        pytest.param(ALL.failed(1), Restarts(failures=1), id="a failure is charged"),
        pytest.param(ALL.failed(0).failed(1).failed(2), Restarts(failures=1), id="two dying together count once"),
        pytest.param(ALL.deleted(1), Restarts(disruptions=1), id="a deleted pod is not"),
        pytest.param(ALL.gone(1), Restarts(disruptions=1), id="nor one that is gone"),
        pytest.param(ALL.gone(0, 1, 2), Restarts(disruptions=1), id="nor all of them"),
        pytest.param(ALL.disrupted(1), Restarts(disruptions=1), id="nor an evicted one"),
        pytest.param(ALL.rejected(1), Restarts(disruptions=1), id="nor one refused by its node"),
        pytest.param(job(3).created().deleted(0), Restarts(disruptions=1), id="nor one deleted while pending"),
        pytest.param(ALL.disrupted(1).failed(2, seconds_ago=1), Restarts(disruptions=1), id="nor what followed"),
        pytest.param(job(3).created().failed(2), Restarts(failures=1), id="one that failed before the others ran"),
        pytest.param(
            job(3).created().with_status(launched_attempt=0).failed(2),
            Restarts(failures=1),
            id="one that failed before the group was complete",
        ),
    ],
)
def test_an_attempt_that_ends_is_counted_once(scene: Scene, restarts: Restarts) -> None:
    decided = plan(scene.snapshot, NOW)
    assert decided.actions == ()
    assert decided.status == stored(decided.status)
    assert (decided.status.attempt, decided.status.restarts, decided.status.restart_count) == (2, restarts, 1)
    assert decided.status.phase is Phase.RESTARTING
    assert decided.status.running_time is None
    (event,) = decided.events
    assert event.type == "Warning"
    assert summarize(decided.status.conditions)[C.RESTARTING] == because(event.reason)
    assert summarize(decided.status.conditions)[C.RUNNING] == because(event.reason, holds=False)


def test_event_names_cause_count_and_scope() -> None:
    (event,) = plan(ALL.failed(1, exit_code=3, message="boom").snapshot, NOW).events
    assert event.note == (
        "worker 1 of attempt 1 (pod train-worker-1-1 on node1) failed with exit code 3 (Error): boom"
        " (1 of 10 restarts used); restarting all workers as attempt 2"
    )


def test_last_failure_is_that_of_the_cause() -> None:
    failure = plan(ALL.failed(2, exit_code=137, reason="OOMKilled", message="m").snapshot, NOW).status.last_failure
    assert failure is not None
    assert (failure.pod, failure.pod_uid, failure.node) == ("train-worker-2-1", "pod-2-1", "node2")
    assert (failure.rank, failure.exit_code, failure.reason, failure.message) == (2, 137, "OOMKilled", "m")
    assert (failure.attempt, failure.time) == (1, ago(10))


def test_rank_reported_by_the_agent_takes_precedence() -> None:
    """Of 8 ranks per worker, rank 19 runs in worker 2."""
    failure = plan(ALL.failed(2, rank=19).snapshot, NOW).status.last_failure
    assert failure is not None
    assert (failure.pod, failure.rank) == ("train-worker-2-1", 19)


def test_launcher_failure_names_no_rank() -> None:
    last = plan(job(2, processesPerReplica=2).running().failed(1, exit_code=1).snapshot, NOW).status.last_failure
    assert last is not None
    assert (last.pod, last.rank) == ("train-worker-1-1", None)


def test_hang_counts_as_failure_and_as_hang() -> None:
    after = plan(ALL.failed(2, exit_code=91).snapshot, NOW).status
    assert after.restarts == Restarts(failures=1, hangs=1)
    again = job(3).running(attempt=2).with_status(restarts=after.restarts)
    assert plan(again.failed(0, exit_code=1).snapshot, NOW).status.restarts == Restarts(failures=2, hangs=1)
    assert plan(again.deleted(0).snapshot, NOW).status.restarts == Restarts(failures=1, hangs=1, disruptions=1)


@pytest.mark.parametrize(("reason", "summary"), [("Error", "exit 137"), ("OOMKilled", "OOMKilled")])
def test_last_failure_has_a_summary(reason: str, summary: str) -> None:
    failure = plan(ALL.failed(1, exit_code=137, reason=reason).snapshot, NOW).status.last_failure
    assert failure is not None
    assert failure.summary == summary


def test_a_disruption_leaves_the_last_failure() -> None:
    scene = ALL.with_status(last_failure=plan(ALL.failed(0).snapshot, NOW).status.last_failure)
    assert plan(scene.deleted(1).snapshot, NOW).status.last_failure == scene.status.last_failure


def test_failure_of_an_old_attempt_counts_no_more() -> None:
    scene = ALL.failed(1).started(attempt=2).with_status(restarts=Restarts(failures=1))
    assert plan(scene.snapshot, NOW).status.restarts.failures == 1


@pytest.mark.parametrize(
    ("count", "ran", "delay"),
    [
        pytest.param(0, None, 0, id="the first time at once"),
        pytest.param(1, None, 2, id="the second"),
        pytest.param(2, 5, 4, id="the third"),
        pytest.param(5, None, 32, id="the sixth"),
        pytest.param(6, None, 60, id="never longer than a minute"),
        pytest.param(1000, 59, 60, id="however often"),
        pytest.param(6, 60, 0, id="an attempt that ran for a minute starts over"),
    ],
)
def test_delay_grows_while_attempts_end_early(count: int, ran: float | None, delay: int) -> None:
    scene = ALL.with_status(backoff=Backoff(count=count), running_time=None if ran is None else ago(ran)).rejected(1)
    decided = plan(scene.snapshot, NOW)
    assert decided.status.internal.backoff.not_before == ago(-delay)
    assert (f"as attempt 2, in {delay} seconds" in decided.events[0].note) is (delay > 0)
    assert decided.status.internal.backoff.count == (1 if ran == 60 else count + 1)


def test_node_rejection_stays_in_status_during_backoff() -> None:
    scene = ALL.with_status(backoff=Backoff(count=3)).rejected(1)
    waiting = job(3).started(2).with_status(**dict(stored(plan(scene.snapshot, NOW).status)))
    decided = plan(waiting.snapshot, NOW)
    assert decided.requeue_after == 8.0
    assert decided.status.phase is Phase.RESTARTING
    running = decided.status.condition(C.RUNNING)
    assert running is not None
    assert running.reason == Reason.ADMISSION_REJECTED
    assert decided.status.message is not None
    assert "was rejected by its node: UnexpectedAdmissionError: no device is healthy" in decided.status.message


def test_victim_is_waited_for_without_a_write() -> None:
    scene = ALL.failed(1, seconds_ago=1, message="Connection reset by peer", peer_lost=True)
    decided = plan(scene.snapshot, NOW)
    assert (decided.status, decided.actions, decided.requeue_after) == (scene.status, (), 2.0)
    assert plan(scene.failed(2, seconds_ago=0).snapshot, NOW).status.last_failure is not None


@pytest.mark.parametrize(
    ("used", "allowed", "fails"),
    [(0, 0, True), (0, 1, False), (1, 1, True), (9, 10, False), (10, 10, True), (10, 3, True)],
)
def test_restarts_are_used_up(used: int, allowed: int, *, fails: bool) -> None:
    scene = job(3, recovery={"maxRestarts": allowed}).running().with_status(restarts=Restarts(failures=used))
    decided = plan(scene.failed(1, exit_code=3, message="boom").snapshot, NOW)
    assert decided.status.restarts.failures == used + 1
    assert decided.status.finished is fails
    if fails:
        assert summarize(decided.status.conditions)[C.FAILED] == because(Reason.RESTARTS_EXHAUSTED)
        assert summarize(decided.status.conditions)[C.STALLED] == because(Reason.RESTARTS_EXHAUSTED)
        assert decided.status.attempt == 1
        assert decided.status.last_failure is not None
        assert decided.events[0].note == (
            "worker 1 of attempt 1 (pod train-worker-1-1 on node1) failed with exit code 3 (Error): boom; the job failed:"
            f" {used + 1} failure{'s' if used else ''}, and recovery.maxRestarts allows {allowed}."
            " Fix the error or raise recovery.maxRestarts, then create the job again"
        )


def test_disruptions_are_never_too_many() -> None:
    scene = job(3, recovery={"maxRestarts": 0}).running().with_status(restarts=Restarts(disruptions=500))
    assert not plan(scene.deleted(1).snapshot, NOW).status.finished


@pytest.mark.parametrize(
    ("had", "allowed", "fails"), [(0, 0, True), (0, 1, False), (1, 1, True), (5, 3, True), (500, None, False)]
)
@pytest.mark.parametrize("how", ["deleted", "gone", "rejected", "ignored"])
def test_disruptions_have_a_budget_of_their_own(how: str, had: int, allowed: int | None, *, fails: bool) -> None:
    rules = [{"action": "Ignore", "exitCodes": [1]}]
    recovery = {"rules": rules, **({} if allowed is None else {"maxDisruptions": allowed})}
    scene = job(3, recovery=recovery).running().with_status(restarts=Restarts(disruptions=had, failures=7))
    hit = scene.failed(1) if how == "ignored" else getattr(scene, how)(1)
    after = plan(hit.snapshot, NOW)
    assert after.status.restarts == Restarts(disruptions=had + 1, failures=7)
    assert after.status.finished is fails
    if fails:
        assert summarize(after.status.conditions)[C.FAILED] == because(Reason.DISRUPTIONS_EXHAUSTED)
        assert f"recovery.maxDisruptions allows {allowed}. Raise" in after.events[0].note


@pytest.mark.parametrize("how", [{"restarts": Restarts(failures=2)}, {"backoff": Backoff(count=2)}])
def test_new_attempt_that_runs_ends_the_restart(how: dict[str, Any]) -> None:
    before = plan(ALL.failed(1).snapshot, NOW).status
    scene = job(3).running(attempt=2).with_status(conditions=before.conditions, running_time=None, **how)
    status = plan(scene.snapshot, NOW).status
    assert status.phase is Phase.RUNNING
    assert status.running_time == NOW
    assert summarize(status.conditions)[C.RESTARTING] == because(Reason.WORKERS_RUNNING, holds=False)
