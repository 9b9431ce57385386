"""When agents that wait for the order of workers may start, and with which ranks."""

from tests.support.jobs import SUPERVISED, Scene, job
from trainyard.api.internal_status import Group, Rendezvous, WorkerOrder
from trainyard.coordinator.assignments import Assignment, assignment

ORDER = WorkerOrder(workers=[0, 2, 1, 3])


def ordered() -> Scene:
    scene = job(4, template=SUPERVISED).running()
    for index in range(4):
        scene = scene.pod(index, ranks_ordered=True)
    return scene


def of(scene: Scene, index: int) -> Assignment:
    return assignment(scene.pods[index], scene.job)


def test_ranks_wait_until_the_order_is_stored() -> None:
    scene = ordered().with_status(running_time=None)
    assert [of(scene, index).run for index in range(4)] == [False] * 4


def test_ranks_start_in_the_stored_order() -> None:
    scene = ordered().with_status(worker_order=ORDER)
    words = [of(scene, index) for index in range(4)]
    assert [word.run for word in words] == [True] * 4
    assert [word.environment["RANK"] for word in words] == ["0", "2", "1", "3"]


def test_other_pods_start_at_once() -> None:
    scene = ordered().pod(2, ranks_ordered=False).with_status(running_time=None)
    assert of(scene, 2).run is True


def test_restart_in_place_gives_the_same_ranks() -> None:
    group, met = Group(created_in_attempt=1, size=4), Rendezvous(attempt=2, address="10.0.0.0")
    scene = ordered().with_status(attempt=2, group=group, rendezvous=met, worker_order=ORDER)
    assert [of(scene, index).environment["RANK"] for index in range(4)] == ["0", "2", "1", "3"]
    assert of(scene, 1).environment["MASTER_ADDR"] == "10.0.0.0"
