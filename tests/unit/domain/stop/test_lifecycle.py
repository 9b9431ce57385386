"""Suspension and deadlines."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.jobs import NOW, Scene, ago, because, condition, job, stored, summarize, worker
from trainyard.api.internal_status import Backoff
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase, Restarts, TrainingJobStatus
from trainyard.domain.decisions import CreateWorker, DeletePod
from trainyard.domain.plan import plan

SUSPEND = {"suspend": True}


class TestSuspend:
    @pytest.mark.parametrize(
        ("scene", "attempt", "seconds"),
        [
            pytest.param(job(3), 1, 0, id="from the start"),
            pytest.param(job(3).started(), 1, 300, id="before any pod"),
            pytest.param(replace(job(3).started(), pods=(worker(0),)), 2, 300, id="while pods are made"),
            pytest.param(job(3).created(), 2, 300, id="pending"),
            pytest.param(job(3).running(), 2, 300, id="running"),
            pytest.param(job(3).running().failed(1), 2, 300, id="as a worker fails"),
            pytest.param(job(3).running().gone(0, 1, 2), 2, 300, id="as all pods are gone"),
            pytest.param(job(3).started(attempt=2), 2, 300, id="between attempts"),
        ],
    )
    def test_ends_the_attempt(self, scene: Scene, attempt: int, seconds: int) -> None:
        decided = plan(scene.with_spec(lifecycle=SUSPEND).snapshot, NOW)
        status = decided.status
        assert (list(decided.actions), status) == ([], stored(status))
        assert (status.phase, status.attempt, status.restarts) == (Phase.SUSPENDED, attempt, Restarts())
        assert (status.internal.active_since, status.internal.active_seconds) == (None, seconds)
        assert summarize(status.conditions)[C.SUSPENDED] == because(Reason.SUSPENDED)
        assert summarize(status.conditions)[C.RUNNING] == because(Reason.SUSPENDED, holds=False)
        assert [e.reason for e in decided.events] == [Reason.SUSPENDED]

    def test_while_restarting_ends_the_restart_and_its_delay(self) -> None:
        scene = job(3).started(attempt=2).with_conditions(condition(C.RESTARTING)).with_status(backoff=Backoff(count=5))
        status = plan(scene.with_spec(lifecycle=SUSPEND).snapshot, NOW).status
        assert summarize(status.conditions)[C.RESTARTING] == because(Reason.SUSPENDED, holds=False)
        assert status.internal.backoff == Backoff()

    def test_deletes_all_pods_and_makes_none(self) -> None:
        scene = replace(
            job(2, lifecycle=SUSPEND).started(attempt=2).suspended(), pods=(worker(0), worker(1, attempt=2))
        )
        decided = plan(scene.snapshot, NOW)
        assert decided.actions == [DeletePod(p.name, p.uid, Reason.SUSPENDED) for p in scene.pods]
        assert decided.status.replicas == 2
        after = plan(replace(scene, pods=()).snapshot, NOW)
        assert (after.actions, after.status.replicas, after.status.ready) == ([], 0, "0/2")

    def test_comes_too_late_for_a_succeeded_job(self) -> None:
        scene = job(2).running().succeeded(0, 1).with_spec(lifecycle=SUSPEND)
        assert summarize(plan(scene.snapshot, NOW).status.conditions)[C.COMPLETE] == because(Reason.WORKERS_SUCCEEDED)

    def test_of_a_finished_job_means_nothing(self) -> None:
        scene = job(2).running().finished().with_spec(lifecycle=SUSPEND)
        assert not plan(scene.snapshot, NOW).status.suspended

    def test_taken_back_continues_the_decided_attempt(self) -> None:
        scene = job(2).started(attempt=2).suspended()
        decided = plan(scene.snapshot, NOW)
        assert (list(decided.actions), decided.status.attempt, decided.status.phase) == ([], 2, Phase.PENDING)
        assert (decided.status.internal.active_since, decided.status.internal.attempt_start_time) == (NOW, NOW)
        assert decided.status.start_time == scene.status.start_time
        assert summarize(decided.status.conditions)[C.SUSPENDED] == because(Reason.RESUMED, holds=False)
        assert [e.reason for e in decided.events] == [Reason.RESUMED]
        goes_on = replace(scene, status=stored(decided.status), has_service=True)
        assert plan(goes_on.snapshot, NOW).actions == [CreateWorker(0, 2, 2), CreateWorker(1, 2, 2)]

    def test_with_another_size_programs_get_the_old(self) -> None:
        scene = job(3).running().with_spec(replicas=2, lifecycle=SUSPEND)
        assert plan(scene.snapshot, NOW).status.internal.previous_size == 3

    def test_taken_back_waits_for_the_old_pods(self) -> None:
        scene = replace(job(1).started(attempt=2), has_service=True, pods=(worker(0, deletion_time=ago(-10)),))
        assert plan(scene.snapshot, NOW).actions == []

    def test_twice_stops_the_clock_twice(self) -> None:
        scene = job(1).running()
        for minute in range(0, 20, 10):
            at = NOW + timedelta(minutes=minute)
            stopped = plan(scene.with_spec(lifecycle=SUSPEND).snapshot, at).status
            resumed = plan(replace(scene, status=stopped).snapshot, at + timedelta(minutes=5)).status
            scene = replace(scene, status=resumed, pods=())
        assert scene.status.internal.active_seconds == 300 + 300


class TestActiveDeadline:
    @pytest.mark.parametrize(("limit", "fails"), [(301, False), (300, True), (299, True)])
    def test_passes(self, limit: int, *, fails: bool) -> None:
        scene = job(2, lifecycle={"activeDeadlineSeconds": limit}).running()
        decided = plan(scene.snapshot, NOW)
        assert decided.status.finished is fails
        if fails:
            assert summarize(decided.status.conditions)[C.FAILED] == because(Reason.DEADLINE_EXCEEDED)
            assert list(decided.actions) == []
        else:
            assert decided.requeue_after == 1.0

    def test_stands_still_while_suspended(self) -> None:
        scene = job(2, lifecycle={"activeDeadlineSeconds": 100, **SUSPEND}).suspended().with_status(active_seconds=99)
        decided = plan(scene.snapshot, NOW)
        assert (decided.status.finished, decided.requeue_after) == (False, None)
        resumed = plan(scene.with_spec(lifecycle={"activeDeadlineSeconds": 100}).snapshot, NOW).status
        goes_on = replace(scene.with_spec(lifecycle={"activeDeadlineSeconds": 100}), status=resumed)
        assert plan(goes_on.snapshot, NOW).requeue_after == 1.0
        assert plan(goes_on.snapshot, ago(-1)).status.finished

    def test_comes_after_success(self) -> None:
        scene = job(2, lifecycle={"activeDeadlineSeconds": 1}).running().succeeded(0, 1)
        assert plan(scene.snapshot, NOW).status.holds(C.COMPLETE)

    def test_precedes_another_attempt_and_fails_no_worker(self) -> None:
        status = plan(job(2, lifecycle={"activeDeadlineSeconds": 1}).running().failed(0).snapshot, NOW).status
        assert summarize(status.conditions)[C.FAILED] == because(Reason.DEADLINE_EXCEEDED)
        assert status.restarts == Restarts()

    def test_ends_a_wait_between_attempts(self) -> None:
        scene = job(2, lifecycle={"activeDeadlineSeconds": 303}).started(2)
        waiting = plan(scene.with_status(backoff=Backoff(count=6, not_before=ago(-60))).snapshot, NOW)
        assert waiting.requeue_after == 3.0


class TestStartupDeadline:
    LIMIT = job(2, lifecycle={"startupDeadlineSeconds": 60})

    def test_passes_with_the_reason_for_the_wait(self) -> None:
        scene = self.LIMIT.created().waiting(1, "Unschedulable", "0/3 nodes", scheduled=False)
        status = plan(scene.snapshot, NOW).status
        failed = status.condition(C.FAILED)
        assert failed is not None
        assert failed.reason == Reason.STARTUP_DEADLINE_EXCEEDED
        assert failed.message == (
            "not all workers ran within lifecycle.startupDeadlineSeconds, which is 60:"
            " pod train-worker-1-1: Unschedulable: 0/3 nodes"
        )

    @pytest.mark.parametrize(
        ("status", "wait"),
        [
            pytest.param({"attempt_start_time": ago(59)}, 1.0, id="not yet"),
            pytest.param(
                {"attempt_start_time": ago(90), "backoff": Backoff(not_before=ago(30))}, 30.0, id="after a delay"
            ),
            pytest.param(
                {"attempt_start_time": ago(30), "backoff": Backoff(not_before=ago(90))}, 30.0, id="an old delay"
            ),
        ],
    )
    def test_counts_from_the_attempts_own_start(self, status: dict[str, object], wait: float) -> None:
        assert plan(self.LIMIT.created().with_status(**status).snapshot, NOW).requeue_after == wait

    def test_is_over_once_all_workers_ran(self) -> None:
        scene = self.LIMIT.running().pod(1, running=False)
        decided = plan(scene.snapshot, NOW)
        assert (decided.status.finished, decided.requeue_after) == (False, None)

    def test_does_not_hide_a_failure(self) -> None:
        assert plan(self.LIMIT.created().failed(1).snapshot, NOW).status.restarts.failures == 1


def test_suspended_jobs_first_status_has_never_started() -> None:
    status = plan(job(1, lifecycle=SUSPEND).snapshot, NOW).status
    assert status.start_time is None
    assert status.attempt == TrainingJobStatus().attempt


def test_active_time_never_runs_backwards() -> None:
    scene = job(1, lifecycle={"suspend": True}).running().with_status(active_since=ago(-3600), active_seconds=5)
    assert plan(scene.snapshot, NOW).status.internal.active_seconds == 5
