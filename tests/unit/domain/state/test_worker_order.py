"""The order of workers by rank: found once for each group, stored before anything acts on it, and kept with the pods."""

from dataclasses import replace

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, job
from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import Group, Rendezvous, WorkerOrder
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.plan import plan

ORDER = WorkerOrder(workers=[0, 2, 1, 3])


def starting(size: int = 4) -> Scene:
    """A group of which all pods run for the first time, and whose agents wait."""
    scene = job(size, template=SUPERVISED).running().with_status(running_time=None).with_agents(AgentState.WAITING)
    for index in range(size):
        scene = scene.pod(index, ranks_ordered=True)
    return scene


def planned(scene: Scene, *order: int) -> TrainingJobStatus:
    return plan(replace(scene.snapshot, order_by_placement=order), NOW).status


def stored_order(scene: Scene, *order: int) -> list[int] | None:
    found = planned(scene, *order).internal.worker_order
    return None if found is None else found.workers


def test_order_is_stored_as_all_workers_run() -> None:
    status = planned(starting(), 0, 2, 1, 3)
    assert (status.internal.worker_order, status.running_time) == (ORDER, NOW)
    assert [status.group_rank(index) for index in range(4)] == [0, 2, 1, 3]


def test_no_order_before_all_workers_run() -> None:
    status = planned(starting().pod(3, running=False, ready=False, phase="Pending"), 0, 2, 1, 3)
    assert (status.internal.worker_order, status.running_time) == (None, None)


def test_order_of_indexes_is_stored_as_found() -> None:
    """Else a replaced pod of the group could bring another order."""
    assert stored_order(starting(), 0, 1, 2, 3) == []
    assert stored_order(starting()) == []


def test_order_of_another_size_is_not_used() -> None:
    assert stored_order(starting(), 0, 2, 1) == []


def test_pods_that_do_not_wait_have_no_order() -> None:
    scene = starting().pod(1, ranks_ordered=False)
    assert stored_order(scene, 0, 2, 1, 3) is None


def test_group_that_runs_keeps_its_order() -> None:
    scene = starting().with_status(running_time=ago(60), worker_order=ORDER).with_agents()
    assert stored_order(scene, 0, 3, 1, 2) == [0, 2, 1, 3]


def test_restart_in_place_keeps_the_order() -> None:
    scene = starting().with_status(running_time=ago(60), worker_order=ORDER).with_agents()
    status = planned(scene.reported_failed(2), 0, 1, 3, 2)
    assert status.attempt == 2
    assert status.internal.group is not None
    assert status.internal.worker_order == ORDER


def test_new_pod_for_a_worker_keeps_the_order() -> None:
    scene = starting().with_status(running_time=ago(60), worker_order=ORDER).with_agents()
    status = planned(scene.deleted(2))
    group = status.internal.group
    assert group is not None
    assert [each.worker for each in group.replacements] == [2]
    assert status.internal.worker_order == ORDER


def test_group_of_new_pods_has_no_order_yet() -> None:
    kept = starting().with_status(running_time=ago(60), worker_order=ORDER).with_agents()
    scene = kept.with_spec(recovery={"minRestartScope": "Group"}).failed(2)
    status = planned(scene)
    assert (status.attempt, status.internal.group, status.internal.worker_order) == (2, None, None)


def test_smaller_group_gets_an_order_of_its_own() -> None:
    group = Group(created_in_attempt=1, size=3)
    waiting = starting().with_spec(replicas=3).with_status(attempt=2, group=group, worker_order=None)
    scene = replace(waiting, pods=waiting.pods[:3], agents=None).with_agents(AgentState.WAITING)
    status = planned(scene, 0, 2, 1)
    assert status.internal.rendezvous == Rendezvous(attempt=2, address="10.0.0.0")
    assert status.internal.worker_order == WorkerOrder(workers=[0, 2, 1])


def test_change_of_size_forgets_the_order() -> None:
    scene = starting().with_status(running_time=ago(60), worker_order=ORDER).with_agents()
    status = planned(scene.with_spec(replicas=3))
    while status.attempt == 1:
        # The ranks are asked to stop first, if they can.
        scene = replace(scene.with_spec(replicas=3), status=status)
        status = planned(scene)
    assert status.internal.worker_order is None


def test_suspended_job_has_no_order() -> None:
    scene = starting().with_status(running_time=ago(60), worker_order=ORDER).with_agents()
    status = planned(scene.with_spec(lifecycle={"suspend": True}))
    assert (status.suspended, status.internal.worker_order) == (True, None)


def test_order_written_by_hand_is_no_order() -> None:
    for wrong in ([1, 0, 2], [0, 1, 1], [0, 2, 3]):
        assert WorkerOrder(workers=wrong).workers == []
    status = TrainingJobStatus().evolve(worker_order=ORDER)
    assert [status.group_rank(index) for index in (4, 10_000)] == [4, 10_000], "others have their index"


def test_failed_rank_is_named_by_the_order() -> None:
    scene = starting().with_status(running_time=ago(60), worker_order=ORDER)
    failure = planned(replace(scene, agents=None).failed(2)).last_failure
    assert failure is not None
    assert (failure.rank, failure.pod) == (1, "train-worker-2-1")
