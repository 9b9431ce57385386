"""Success, and what a finished job does: it only ever loses things."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, because, condition, job, stored, summarize, worker
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.decisions import DeleteJob, DeletePod, Plan, StopPod
from trainyard.domain.plan import plan

ALL = job(3).running()
WORKER_0 = job(3, lifecycle={"success": "Worker0"}).running()


@pytest.mark.parametrize(
    ("scene", "message"),
    [
        pytest.param(ALL.succeeded(0, 1, 2), "all 3 workers succeeded", id="all"),
        pytest.param(WORKER_0.succeeded(0), "worker 0 succeeded", id="worker 0, whose success it is"),
        pytest.param(WORKER_0.succeeded(0).failed(1), "worker 0 succeeded", id="worker 0, though another failed"),
        pytest.param(
            ALL.succeeded(0, 1, 2).deleted(1), "all 3 workers succeeded", id="all, and then a pod was deleted"
        ),
        pytest.param(
            ALL.succeeded(0, 1, 2).with_spec(replicas=5), "all 3 workers succeeded", id="all of a group as made"
        ),
        pytest.param(
            ALL.succeeded(0, 1).pod(2, phase="Running", exit=ALL.succeeded(2).pods[2].exit),
            "all 3 workers succeeded",
            id="all, while a sidecar runs on",
        ),
    ],
)
def test_success(scene: Scene, message: str) -> None:
    decided = plan(scene.snapshot, NOW)
    status = decided.status
    assert (list(decided.actions), status) == ([], stored(status))
    complete = status.condition(C.COMPLETE)
    assert complete is not None
    assert (status.phase, complete.reason, complete.message) == (Phase.COMPLETE, Reason.WORKERS_SUCCEEDED, message)
    assert summarize(status.conditions)[C.RUNNING] == because(Reason.WORKERS_SUCCEEDED, holds=False)
    assert (status.completion_time, status.internal.active_since, status.ready) == (NOW, None, "3/3")
    assert [(e.type, e.reason) for e in decided.events] == [("Normal", Reason.WORKERS_SUCCEEDED)]


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(ALL.succeeded(0, 1), id="one runs on"),
        pytest.param(ALL.succeeded(0), id="worker 0 alone, where all count"),
        pytest.param(WORKER_0.succeeded(1, 2), id="the others alone, where worker 0 counts"),
        pytest.param(ALL.succeeded(0, 1, 2).gone(2), id="one is gone"),
        pytest.param(ALL.succeeded(0, 1).with_spec(replicas=2), id="enough for the new size, not for the group's"),
        pytest.param(ALL.succeeded(0, 1, 2).started(attempt=2), id="an old attempt"),
    ],
)
def test_no_success(scene: Scene) -> None:
    assert not plan(scene.snapshot, NOW).status.finished


def test_failure_is_not_shown_as_ready() -> None:
    status = plan(job(3, recovery={"maxRestarts": 0}).running().failed(1).snapshot, NOW).status
    assert (status.phase, status.ready) == (Phase.FAILED, "0/3")


def test_end_of_a_restarting_job_ends_the_restart() -> None:
    scene = ALL.with_conditions(condition(C.RESTARTING)).succeeded(0, 1, 2)
    assert summarize(plan(scene.snapshot, NOW).status.conditions)[C.RESTARTING] == because(
        Reason.JOB_FINISHED, holds=False
    )


MIXED = ALL.succeeded(0).failed(1)


@pytest.mark.parametrize(
    ("kind", "policy", "deleted", "stopped"),
    [
        (C.COMPLETE, "Running", [2], []),
        (C.FAILED, "Running", [], [2]),
        (C.COMPLETE, "All", [0, 1, 2], []),
        (C.FAILED, "All", [0, 1, 2], []),
        (C.COMPLETE, "None", [], []),
        (C.FAILED, "None", [], []),
    ],
)
def test_clean_pods(kind: C, policy: str, deleted: list[int], stopped: list[int]) -> None:
    scene = MIXED.finished(kind).with_spec(lifecycle={"cleanPods": policy})
    assert ends(plan(scene.snapshot, NOW)) == (deleted, stopped)


def ends(decided: Plan) -> tuple[list[int], list[int]]:
    """The workers whose pods are deleted, and those whose pods are stopped and kept."""
    deleted, stopped = (
        [int(action.name.split("-")[2]) for action in decided.actions if isinstance(action, kind)]
        for kind in (DeletePod, StopPod)
    )
    return deleted, stopped


FAILED = MIXED.finished(C.FAILED)


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        pytest.param(FAILED, ([], [2]), id="a worker that runs"),
        pytest.param(FAILED.pod(2, stop_requested=True), ([], []), id="a worker that stops already"),
        pytest.param(FAILED.deleted(2), ([], []), id="a worker that is being deleted"),
        pytest.param(FAILED.waiting(2, "ImagePullBackOff"), ([], [2]), id="a worker whose image cannot be pulled"),
        pytest.param(FAILED.waiting(2, "Unschedulable", scheduled=False), ([2], []), id="a worker without a node"),
        pytest.param(
            FAILED.with_spec(lifecycle={"keepFailedPodsSeconds": 60}), ([], [2]), id="all, within the time limit"
        ),
        pytest.param(
            FAILED.with_spec(lifecycle={"keepFailedPodsSeconds": 10}), ([0, 1, 2], []), id="none after the time limit"
        ),
        pytest.param(
            FAILED.with_spec(lifecycle={"keepFailedPodsSeconds": 0, "cleanPods": "None"}), ([0, 1, 2], []), id="none"
        ),
        pytest.param(
            MIXED.finished().with_spec(lifecycle={"keepFailedPodsSeconds": 0}), ([2], []), id="of a complete job"
        ),
    ],
)
def test_failed_job_keeps_the_logs_of_its_workers(scene: Scene, expected: tuple[list[int], list[int]]) -> None:
    assert ends(plan(scene.snapshot, NOW)) == expected


def test_failed_job_requeues_for_its_pods() -> None:
    scene = FAILED.with_spec(lifecycle={"keepFailedPodsSeconds": 60, "ttlSecondsAfterFinished": 100})
    assert plan(scene.snapshot, NOW).requeue_after == 50.0


def test_pods_of_old_attempts_are_cleaned_once() -> None:
    scene = replace(job(1).started(attempt=2).finished(), pods=(worker(0), worker(0, attempt=2, deletion_time=NOW)))
    assert plan(scene.snapshot, NOW).actions == [DeletePod("train-worker-0-1", "pod-0-1", Reason.JOB_FINISHED)]


@pytest.mark.parametrize(("seconds", "goes"), [(10, False), (61, True)])
def test_failed_worker_gets_time_to_exit_by_itself(seconds: float, *, goes: bool) -> None:
    """Where its container has a policy of its own, its node starts it again and again."""
    runs = job(1, template=SUPERVISED, recovery={"maxRestarts": 0}).running().with_agents().reported_failed(0)
    over = replace(runs, status=stored(plan(runs.snapshot, NOW).status)).with_status(completion_time=ago(seconds))
    decided = plan(over.snapshot, NOW)
    assert [isinstance(action, StopPod) for action in decided.actions] == [True] * goes
    assert decided.requeue_after == (None if goes else 50.0)


def test_running_sidecar_goes_with_its_pod() -> None:
    scene = ALL.succeeded(0, 1, 2).pod(1, phase="Running", ended=False).finished()
    assert plan(scene.snapshot, NOW).actions == [DeletePod("train-worker-1-1", "pod-1-1", Reason.JOB_FINISHED)]


DONE = ALL.succeeded(0, 1, 2).finished()


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(DONE, id="as it ended"),
        pytest.param(DONE.gone(0, 1, 2), id="its pods are deleted"),
        pytest.param(replace(DONE, has_service=False), id="its Service is deleted"),
        pytest.param(DONE.with_spec(replicas=9), id="it is scaled"),
        pytest.param(DONE.with_spec(recovery={"maxRestarts": 99}), id="more restarts are allowed"),
        pytest.param(DONE.with_spec(lifecycle={"suspend": True}), id="it is suspended"),
        pytest.param(DONE.failed(1), id="a pod of it fails"),
        pytest.param(
            replace(DONE, pods=(worker(0, attempt=7, phase="Failed", ended=True),)),
            id="a pod of a later attempt turns up",
        ),
    ],
)
@pytest.mark.parametrize("kind", [C.COMPLETE, C.FAILED])
def test_finished_job_stays_as_it_is(scene: Scene, kind: C) -> None:
    ended = scene.finished(kind) if kind is C.COMPLETE else scene.with_status(conditions=[condition(C.FAILED)])
    decided = plan(ended.snapshot, NOW)
    assert list(decided.actions) == []
    assert decided.status.conditions == ended.status.conditions
    assert (decided.status.ready, decided.status.attempt) == (ended.status.ready, ended.status.attempt)
    assert decided.status.observed_generation == ended.generation


@pytest.mark.parametrize(
    ("ttl", "ended", "expected"),
    [
        pytest.param(60, 59, (False, 1.0), id="not yet"),
        pytest.param(60, 60, (True, None), id="now"),
        pytest.param(0, 0, (True, None), id="at once"),
        pytest.param(None, 1e6, (False, None), id="never"),
    ],
)
def test_ttl(ttl: int | None, ended: float, expected: tuple[bool, float | None]) -> None:
    lifecycle = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    scene = DONE.with_spec(lifecycle=lifecycle).with_status(completion_time=ago(ended))
    decided = plan(scene.snapshot, NOW)
    assert (decided.actions == [DeleteJob(Reason.TTL_EXPIRED)], decided.requeue_after) == expected


def test_ttl_of_a_job_that_is_going_already() -> None:
    scene = replace(DONE.with_spec(lifecycle={"ttlSecondsAfterFinished": 0}), deleting=True)
    assert plan(scene.snapshot, NOW) == Plan(scene.status)
