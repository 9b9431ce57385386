"""What the status says of the pods that are seen."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, Scene, because, condition, job, summarize, worker
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase, TrainingJobStatus
from trainyard.api.worker_status import WorkerStatus
from trainyard.domain.decisions import PodChanges
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import PodIssue
from trainyard.domain.status.report import report

ALL = job(3).running()


def seen(scene: Scene) -> TrainingJobStatus:
    return plan(scene.snapshot, NOW).status


@pytest.mark.parametrize(
    ("scene", "counts"),
    [
        pytest.param(job(3).started(), (0, 0, "0/3"), id="no pods"),
        pytest.param(job(3).created(), (3, 0, "0/3"), id="pending"),
        pytest.param(ALL, (3, 3, "3/3"), id="all run"),
        pytest.param(ALL.pod(0, ready=False), (3, 2, "2/3"), id="one is not ready"),
        pytest.param(ALL.succeeded(0), (3, 3, "3/3"), id="one has succeeded"),
        pytest.param(ALL.started(attempt=2), (3, 0, "0/3"), id="those of an old attempt are there, and not ready"),
    ],
)
def test_counts(scene: Scene, counts: tuple[int, int, str]) -> None:
    status = seen(scene)
    assert (status.replicas, status.ready_replicas, status.ready) == counts
    assert status.selector == "trainyard.dev/job-uid=job-uid"
    assert status.observed_generation == 1


@pytest.mark.parametrize(
    ("scene", "phase", "scheduled", "running"),
    [
        pytest.param(
            job(3).created(),
            Phase.PENDING,
            because(Reason.WORKERS_PENDING, holds=False),
            because(Reason.WORKERS_PENDING, holds=False),
            id="pending",
        ),
        pytest.param(
            job(3).created().waiting(0, "Unschedulable", scheduled=False),
            Phase.PENDING,
            because(Reason.UNSCHEDULABLE, holds=False),
            because(Reason.UNSCHEDULABLE, holds=False),
            id="unschedulable",
        ),
        pytest.param(
            ALL.waiting(0, "ErrImagePull"),
            Phase.PENDING,
            because(Reason.WORKERS_SCHEDULED),
            because(Reason.IMAGE_PULL_FAILED, holds=False),
            id="no image",
        ),
        pytest.param(
            job(3).created().waiting(0, "Unschedulable", scheduled=False).with_conditions(condition(C.RESTARTING)),
            Phase.RESTARTING,
            because(Reason.UNSCHEDULABLE, holds=False),
            because(Reason.UNSCHEDULABLE, holds=False),
            id="restarting",
        ),
        pytest.param(
            ALL, Phase.RUNNING, because(Reason.WORKERS_SCHEDULED), because(Reason.WORKERS_RUNNING), id="running"
        ),
    ],
)
def test_phase_and_conditions(
    scene: Scene, phase: Phase, scheduled: tuple[bool, str], running: tuple[bool, str]
) -> None:
    status = seen(scene)
    assert status.phase is phase
    assert summarize(status.conditions)[C.SCHEDULED] == scheduled
    assert summarize(status.conditions)[C.RUNNING] == running


def test_restart_reason_may_be_unknown_to_this_operator() -> None:
    scene = job(3).started(attempt=2).with_conditions(condition(C.RESTARTING, reason="HangDetected"))
    assert summarize(seen(scene).conditions)[C.RUNNING] == (False, "HangDetected")


def test_job_that_continues_is_no_longer_stalled() -> None:
    scene = ALL.with_conditions(condition(C.STALLED, reason=Reason.INVALID_SPEC))
    assert summarize(seen(scene).conditions)[C.STALLED] == because(Reason.WORKERS_RUNNING, holds=False)


def test_running_time_is_that_of_the_first_time() -> None:
    assert seen(ALL).running_time == ALL.status.running_time
    assert seen(ALL.with_status(running_time=None)).running_time == NOW


def test_group_is_launched_once_all_pods_exist() -> None:
    scene = job(3).created().with_status(launched_attempt=0)
    assert seen(scene).internal.launched_attempt == 1
    assert seen(scene.gone(1)).internal.launched_attempt == 0
    # Three pods, and still worker 1 has none.
    assert seen(replace(scene.gone(1), pods=(*scene.gone(1).pods, worker(3)))).internal.launched_attempt == 0


def test_only_workers_that_are_not_well_are_listed() -> None:
    scene = ALL.waiting(1, "ErrImagePull", "m" * 5000)
    expected = WorkerStatus(
        name="train-worker-1-1", node="node1", state="Starting", reason="ErrImagePull", message="m" * 1024
    )
    assert seen(scene).workers == [expected]


def test_list_of_workers_is_bounded() -> None:
    scene = job(40).created()
    for index in range(40):
        scene = scene.waiting(index, "Unschedulable", scheduled=False)
    assert [w.name for w in seen(scene).workers] == [f"train-worker-{i}-1" for i in range(16)]


def test_succeeded_worker_is_not_listed_as_unhealthy() -> None:
    assert seen(ALL.succeeded(0)).workers == []


def test_running_worker_with_an_issue_is_not_listed() -> None:
    assert seen(ALL.pod(0, issue=PodIssue("Unhealthy", "a probe failed"))).workers == []


@pytest.mark.parametrize(
    ("scene", "message"),
    [
        pytest.param(job(3).started(), "0 of 3 workers started; 3 wait for a node", id="no pods"),
        pytest.param(ALL.started(attempt=2), "waiting for 3 pods of earlier attempts to terminate", id="only old pods"),
        pytest.param(
            replace(ALL, pods=(*ALL.pods, worker(0, attempt=0))),
            "all 3 workers are running or have succeeded",
            id="also an old pod",
        ),
    ],
)
def test_only_old_pods_are_waited_for(scene: Scene, message: str) -> None:
    running = seen(scene).condition(C.RUNNING)
    assert running is not None
    assert running.message == message


@pytest.mark.parametrize(
    ("scene", "reason", "message"),
    [
        pytest.param(ALL.failed(1, exit_code=7), "Error", "exit code 7", id="an exit"),
        pytest.param(
            ALL.pod(1, phase="Failed", ended=True, running=False, issue=PodIssue("Odd", "no exit")),
            "Odd",
            "no exit",
            id="no exit",
        ),
    ],
)
def test_failed_worker_is_listed_until_the_verdict(scene: Scene, reason: str, message: str) -> None:
    [unwell] = report(scene.snapshot, PodChanges(), NOW).changes["workers"]
    assert (unwell.name, unwell.reason, unwell.message) == ("train-worker-1-1", reason, message)
