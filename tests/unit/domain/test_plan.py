"""The plan of a job that is on its way: first look, Service before pods, old attempts before new ones, hands off."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, job, stored, worker
from trainyard.api.internal_status import Backoff, Group
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase, Restarts, TrainingJobStatus
from trainyard.domain.decisions import Action, CreateService, CreateWorker, DeletePod, Plan
from trainyard.domain.plan import plan

ALL_THREE = [CreateWorker(0, 1, 3), CreateWorker(1, 1, 3), CreateWorker(2, 1, 3)]


def carried_out(scene: Scene) -> Scene:
    """The scene with the status of its plan stored."""
    return replace(scene, status=stored(plan(scene.snapshot, NOW).status))


def test_first_plan_creates_service_then_pods() -> None:
    first = plan(job(3).snapshot, NOW)
    assert first.actions == [CreateService(), *ALL_THREE]
    status = first.status
    assert (status.start_time, status.internal.active_since, status.internal.attempt_start_time) == (NOW, NOW, NOW)
    assert (status.attempt, status.internal.launched_attempt, status.phase) == (1, 0, Phase.PENDING)
    assert first.requeue_after is None


def test_a_worker_without_others_needs_no_service() -> None:
    assert plan(job(1).snapshot, NOW).actions == [CreateWorker(0, 1, 1)]
    grown = plan(job(1).started(attempt=2).with_spec(replicas=2).snapshot, NOW)
    assert grown.actions == [CreateService(), CreateWorker(0, 2, 2), CreateWorker(1, 2, 2)]


def test_status_uses_whole_seconds_as_it_is_stored() -> None:
    status = plan(job(3).snapshot, NOW.replace(microsecond=999_999)).status
    assert status == stored(status)


def test_pods_that_are_missing_are_made() -> None:
    scene = replace(job(3).started(), has_service=True, pods=(worker(1),))
    assert plan(scene.snapshot, NOW).actions == [CreateWorker(0, 1, 3), CreateWorker(2, 1, 3)]


def test_complete_group_is_reported_once() -> None:
    scene = job(3).created().with_status(launched_attempt=0)
    first = plan(scene.snapshot, NOW)
    assert first.actions == []
    assert [event.reason for event in first.events] == [Reason.WORKERS_CREATED]
    assert first.status.internal.launched_attempt == 1
    second = plan(carried_out(scene).snapshot, NOW)
    assert (second.actions, second.events) == ([], [])


def test_group_of_kept_pods_has_no_event() -> None:
    begun = {"attempt": 2, "launched_attempt": 1, "attempt_start_time": NOW}
    kept = job(3, template=SUPERVISED).running().with_agents()
    kept = kept.with_status(**begun, group=Group(created_in_attempt=1, size=3))
    assert plan(kept.snapshot, NOW).events == []


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(job(3).created(), id="pending"),
        pytest.param(job(3).running(), id="running"),
        pytest.param(job(3).running().succeeded(0), id="one has succeeded"),
        pytest.param(job(3).running().waiting(1, "ImagePullBackOff", "no image"), id="one waits"),
        pytest.param(job(3, lifecycle={"suspend": True}).suspended(), id="suspended"),
        pytest.param(job(3).running().succeeded(0, 1, 2).finished(), id="complete"),
        pytest.param(job(3).running().failed(1).finished(C.FAILED), id="failed"),
    ],
)
def test_nothing_new_means_nothing_to_write(scene: Scene) -> None:
    settled = carried_out(scene)
    later = plan(settled.snapshot, NOW.replace(minute=5))
    assert later.status == settled.status
    assert not later.events


def test_service_that_was_deleted_is_made_again() -> None:
    assert plan(replace(job(3).running(), has_service=False).snapshot, NOW).actions == [CreateService()]


def test_old_pods_go_before_new_ones_come() -> None:
    scene = replace(job(2).running().started(attempt=2), has_service=True)
    deletions = [DeletePod(p.name, p.uid, Reason.STALE_ATTEMPT) for p in scene.pods]
    assert plan(scene.snapshot, NOW).actions == deletions
    going = tuple(replace(p, deletion_time=ago(-20)) for p in scene.pods)
    waiting = plan(replace(scene, pods=going).snapshot, NOW)
    assert (waiting.actions, waiting.requeue_after) == ([], 50.0)
    assert plan(replace(scene, pods=()).snapshot, NOW).actions == [CreateWorker(0, 2, 2), CreateWorker(1, 2, 2)]


def test_pod_on_lost_node_does_not_block() -> None:
    scene = replace(job(2).started(attempt=2), has_service=True, pods=(worker(1, deletion_time=ago(30)),))
    decided = plan(scene.snapshot, NOW)
    assert decided.actions == [CreateWorker(0, 2, 2), CreateWorker(1, 2, 2)]
    assert decided.status.replicas == 1


def deleted(actions: Sequence[Action]) -> list[str]:
    """The names of the pods that are deleted; each action deletes one."""
    assert all(isinstance(action, DeletePod) for action in actions)
    return [action.name for action in actions if isinstance(action, DeletePod)]


def test_finished_pods_keep_logs_during_backoff() -> None:
    over = job(3).running().failed(1).started(attempt=2).with_status(backoff=Backoff(count=2, not_before=ago(-4)))
    assert deleted(plan(over.snapshot, NOW).actions) == ["train-worker-0-1", "train-worker-2-1"]
    waited = over.with_status(backoff=Backoff(count=2, not_before=NOW))
    assert "train-worker-1-1" in deleted(plan(waited.snapshot, NOW).actions)


def test_old_pods_that_are_waited_for_are_named() -> None:
    going = job(2).running().deleted(0).deleted(1).started(attempt=2)
    running_condition = plan(going.snapshot, NOW).status.condition(C.RUNNING)
    assert running_condition is not None
    assert running_condition.message == "waiting for 2 pods of earlier attempts to terminate"


def test_delay_between_attempts_is_kept() -> None:
    scene = job(2).started(attempt=2).with_status(backoff=Backoff(count=3, not_before=ago(-4)))
    waiting = plan(replace(scene, has_service=True).snapshot, NOW)
    assert (waiting.actions, waiting.requeue_after) == ([], 4.0)
    over = plan(replace(scene, has_service=True).snapshot, ago(-4))
    assert over.actions == [CreateWorker(0, 2, 2), CreateWorker(1, 2, 2)]


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(job(3, managedBy="kueue.x-k8s.io/multikueue"), id="somebody else's"),
        pytest.param(replace(job(3).running().failed(1), deleting=True), id="being deleted"),
    ],
)
def test_hands_off(scene: Scene) -> None:
    assert plan(scene.snapshot, NOW) == Plan(scene.status)


def test_our_own_name_in_managed_by_is_us() -> None:
    assert plan(job(1, managedBy="trainyard.dev/operator").snapshot, NOW).actions


def test_lost_status_is_taken_from_the_pods() -> None:
    scene = replace(job(3).running(attempt=4), status=TrainingJobStatus())
    first = plan(scene.snapshot, NOW)
    assert (first.status.attempt, first.status.internal.launched_attempt, list(first.actions)) == (4, 3, [])
    second = plan(carried_out(scene).snapshot, NOW)
    assert (second.status.attempt, second.status.phase, second.actions) == (4, Phase.RUNNING, [])


def test_lost_status_of_a_job_that_has_succeeded() -> None:
    scene = replace(job(2).running(attempt=4).succeeded(0, 1), status=TrainingJobStatus())
    assert plan(carried_out(scene).snapshot, NOW).status.finished


class TestResize:
    """`replicas` was changed."""

    def test_restarts_the_group_at_no_charge(self) -> None:
        scene = job(3).running().with_status(backoff=Backoff(count=3)).with_spec(replicas=5)
        decided = plan(scene.snapshot, NOW)
        assert decided.actions == ()
        assert (decided.status.attempt, decided.status.restarts) == (2, Restarts(resizes=1))
        assert (decided.status.restart_count, decided.status.internal.backoff) == (0, Backoff())
        (event,) = decided.events
        assert (event.type, event.reason) == ("Normal", Reason.RESIZED)
        assert event.note == "replicas was changed from 3 to 5; restarting all workers as attempt 2"

    def test_is_seen_on_any_pod(self) -> None:
        scene = job(3).running().pod(0, workers=0).with_spec(replicas=2)
        assert plan(scene.snapshot, NOW).status.restarts.resizes == 1

    def test_of_a_group_half_made(self) -> None:
        scene = replace(job(3).started(), pods=(worker(0),)).with_spec(replicas=2)
        assert plan(scene.snapshot, NOW).status.attempt == 2

    def test_before_any_pod_needs_no_restart(self) -> None:
        scene = replace(job(3).started().with_spec(replicas=1), has_service=True)
        decided = plan(scene.snapshot, NOW)
        assert (decided.status.attempt, decided.actions) == (1, [CreateWorker(0, 1, 1)])

    def test_between_attempts_needs_no_other_one(self) -> None:
        scene = replace(job(3).running().started(attempt=2).with_spec(replicas=1), pods=(), has_service=True)
        assert plan(scene.snapshot, NOW).actions == [CreateWorker(0, 2, 1)]

    def test_back_again_before_anybody_looked_is_none(self) -> None:
        scene = job(3).running().with_spec(replicas=5).with_spec(replicas=3)
        assert plan(scene.snapshot, NOW).status.attempt == 1
