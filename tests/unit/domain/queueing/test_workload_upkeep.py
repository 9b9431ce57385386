"""What is written to the Workload of a job, and when."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, Scene, condition, job
from tests.support.workloads import ADMISSION, QUEUE, Workload, workload
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import ChangeWorkload, DeleteWorkload
from trainyard.domain.plan import plan
from trainyard.domain.workload_changes import (
    Adapt,
    DropFinalizer,
    Finish,
    PodSet,
    ReclaimPods,
    ReleaseQuota,
    ReportPodsReady,
    WorkloadChange,
)

RUNNING = job(3, **QUEUE).running().with_status(admission=ADMISSION)
READY = ReportPodsReady(ready=True, reason="Started", message="All pods reached readiness and the workload is running")
LATE = ReportPodsReady(ready=False, reason="WaitForStart", message="Not all pods are ready or succeeded")
LOST = ReportPodsReady(
    ready=False, reason="WaitForRecovery", message="At least one pod has failed, waiting for recovery"
)


def changes(scene: Scene) -> list[WorkloadChange]:
    return [each.change for each in plan(scene.snapshot, NOW).actions if isinstance(each, ChangeWorkload)]


def pods_ready(reason: str, *, holds: bool) -> Workload:
    return workload().admitted().condition("PodsReady", holds=holds, reason=reason)


@pytest.mark.parametrize(
    ("given", "scene", "then"),
    [
        pytest.param(workload().admitted(), RUNNING, [READY], id="for the first time"),
        pytest.param(workload().admitted(), RUNNING.pod(1, running=False, ready=False), [LATE], id="not yet"),
        pytest.param(
            pods_ready("Started", holds=True), RUNNING.pod(1, running=False, ready=False), [LOST], id="one is lost"
        ),
        pytest.param(
            pods_ready("WaitForRecovery", holds=False), RUNNING, [replace(READY, reason="Recovered")], id="it is back"
        ),
        pytest.param(pods_ready("Started", holds=True), RUNNING, [], id="as known"),
        pytest.param(
            pods_ready("WaitForStart", holds=False),
            RUNNING.pod(1, running=False, ready=False),
            [],
            id="as late as known",
        ),
    ],
)
def test_pods_ready_follows_kueues_rules(given: Workload, scene: Scene, then: list[WorkloadChange]) -> None:
    assert changes(scene.in_queue(given.view)) == then


SHRUNK = job(2, **QUEUE).running().with_status(admission=ADMISSION.evolve(pods=[ADMISSION.pods[0].evolve(count=2)]))


@pytest.mark.parametrize(
    ("given", "then"),
    [
        pytest.param(pods_ready("Started", holds=True), [ReclaimPods((("worker", 1),))], id="one less"),
        pytest.param(pods_ready("Started", holds=True).change(reclaimable=(("worker", 1),)), [], id="as known"),
        pytest.param(
            workload(4).admitted(3).condition("PodsReady", reason="Started"),
            [ReclaimPods((("worker", 2),))],
            id="counted from what was asked for",
        ),
        pytest.param(workload(4).admitted(2).condition("PodsReady", reason="Started"), [], id="admitted in part"),
    ],
)
def test_smaller_group_frees_quota(given: Workload, then: list[WorkloadChange]) -> None:
    assert changes(SHRUNK.in_queue(given.view)) == then


@pytest.mark.parametrize(
    ("given", "then"),
    [
        pytest.param(workload(), [], id="that fits"),
        pytest.param(workload(queue="other"), [Adapt()], id="in another queue"),
        pytest.param(workload(priority_class="other"), [Adapt()], id="of another class"),
        pytest.param(workload(2), [Adapt()], id="of another size"),
        pytest.param(workload(template_hash="old"), [Adapt()], id="of another template"),
        pytest.param(workload(reclaimable=(("worker", 1),)), [ReclaimPods(())], id="with pods that were given back"),
        pytest.param(workload(deleting=True), [DropFinalizer()], id="that is being deleted"),
        pytest.param(workload(deleting=True, finalizers=("theirs",)), [], id="that others keep"),
        pytest.param(workload().condition("Finished"), [], id="that has ended"),
        pytest.param(
            workload().admitted().evicted("PodsReadyTimeout", "late"),
            [ReleaseQuota("PodsReadyTimeout", "late", requeued=False)],
            id="that Kueue wants back",
        ),
        pytest.param(
            workload().admitted().evicted("NodeFailures", "lost"),
            [ReleaseQuota("NodeFailures", "lost", requeued=True)],
            id="that lost a node",
        ),
        pytest.param(workload().evicted(), [], id="that was given back"),
    ],
)
def test_waiting_job_keeps_its_workload_right(given: Workload, then: list[WorkloadChange]) -> None:
    scene = job(3, **QUEUE).queued(given.view)
    assert changes(scene) == then
    adapted = [a for a in plan(scene.snapshot, NOW).actions if isinstance(a, ChangeWorkload) and a.change == Adapt()]
    assert all(each.pod_sets == (PodSet("worker", 3),) for each in adapted)


def test_quota_for_something_else_is_deleted() -> None:
    scene = job(3, **QUEUE).queued(workload(2).admitted().view)
    (action,) = plan(scene.snapshot, NOW).actions
    assert action == DeleteWorkload(workload().view.name, workload().view.uid)


@pytest.mark.parametrize(("kind", "reason"), [(C.COMPLETE, "Succeeded"), (C.FAILED, "Failed")])
def test_finished_job_finishes_its_workload(kind: C, reason: str) -> None:
    ended = RUNNING.succeeded(0, 1, 2).finished(kind)
    scene = ended.in_queue(workload().admitted().view)
    assert changes(scene) == [Finish(reason, "stored earlier")]
    assert changes(ended.in_queue(workload().condition("Finished").view)) == [DropFinalizer()]
    assert changes(ended.in_queue(workload(finalizers=()).condition("Finished").view)) == []


def test_finished_job_keeps_quota_while_pods_run() -> None:
    scene = RUNNING.finished(C.FAILED).in_queue(workload().admitted().view)
    assert changes(scene) == []


def test_deleted_job_lets_its_workload_go() -> None:
    scene = replace(RUNNING, deleting=True, pods=()).in_queue(workload().admitted().view)
    assert changes(scene) == [DropFinalizer()]


def test_job_without_queue_gives_its_workload_up() -> None:
    scene = job(3).running().in_queue(workload().admitted().view)
    (action,) = [each for each in plan(scene.snapshot, NOW).actions if isinstance(each, DeleteWorkload)]
    assert action.uid == workload().view.uid


def test_resting_job_of_another_kind_writes_nothing() -> None:
    scene = job(3).with_conditions(condition(C.SUSPENDED)).with_spec(lifecycle={"suspend": True}).in_queue()
    assert changes(scene) == []
