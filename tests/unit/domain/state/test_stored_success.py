"""A worker's success is stored when it is seen: what happens to its pod afterwards does not end the attempt."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, job, spec, stored
from trainyard.api.internal_status import Succeeded, WorkerRange
from trainyard.api.reasons import Reason
from trainyard.api.status import Phase, Restarts
from trainyard.domain.decisions import CreateWorker
from trainyard.domain.plan import plan
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import PodIssue


def seen(scene: Scene) -> Scene:
    """The scene with the status of its plan stored."""
    return replace(scene, status=stored(plan(scene.snapshot, NOW).status))


def evicted_with_its_sidecar(scene: Scene) -> Scene:
    """The pod of worker 1 is evicted because a container beside the main one filled the disk."""
    end = Exit(ago(1), 137, "Evicted", "The node was low on resource: ephemeral-storage.")
    return scene.pod(1, phase="Failed", ended=True, exit=end)


LATER: dict[str, Callable[[Scene], Scene]] = {
    "collected": lambda scene: scene.gone(1),
    "two are collected": lambda scene: scene.gone(1, 2),
    "being deleted": lambda scene: scene.deleted(1),
    "drained by a node whose clock is behind": lambda scene: scene.deleted(1).pod(1, clock_behind=True),
    "lost with its node": lambda scene: scene.disrupted(1, reason="DeletionByTaintManager").pod(1, exit=None),
    "container status lost by a reboot": lambda scene: scene.pod(
        1, exit=None, phase="Failed", disruption=PodIssue("ContainerStatusUnknown", "")
    ),
    "evicted by another container": evicted_with_its_sidecar,
}


@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
def test_lost_pod_of_succeeded_worker_changes_nothing(later: Callable[[Scene], Scene]) -> None:
    decided = plan(later(seen(job(3).running().succeeded(1, 2))).snapshot, NOW)
    status = decided.status
    assert (decided.actions, decided.events) == ([], [])
    assert (status.attempt, status.restarts, status.phase) == (1, Restarts(), Phase.RUNNING)
    assert (status.ready, status.workers) == ("3/3", [])


def test_all_pods_but_the_last_are_gone() -> None:
    scene = seen(seen(job(3).running().succeeded(0, 1)).gone(0, 1))
    assert scene.status.replicas == 1
    assert plan(scene.succeeded(2).snapshot, NOW).status.phase is Phase.COMPLETE


def test_resize_of_replicas_keeps_size_of_gone_pods() -> None:
    scene = seen(job(2).running().succeeded(0)).gone(0)
    assert seen(scene).status.attempt == 1
    assert plan(scene.succeeded(1).with_spec(replicas=3).snapshot, NOW).status.phase is Phase.COMPLETE


@pytest.mark.parametrize("gone", [(), (1,)], ids=["pod is there", "pod is gone"])
def test_failure_of_another_worker_restarts_all(gone: tuple[int, ...]) -> None:
    failed = seen(job(3).running().succeeded(1)).gone(*gone).failed(0)
    again = seen(failed)
    assert (again.status.attempt, again.status.internal.succeeded) == (2, None)
    assert again.status.last_failure is not None
    assert again.status.last_failure.pod == "train-worker-0-1"
    empty = replace(again.with_status(backoff={"count": 1}), pods=())
    assert [action for action in plan(empty.snapshot, NOW).actions if isinstance(action, CreateWorker)] == [
        CreateWorker(i, 2, 3) for i in range(3)
    ]


def test_restart_in_place_gives_gone_worker_a_pod() -> None:
    running = Scene(spec(3, template=SUPERVISED)).running().with_agents()
    failed = seen(running.succeeded(1)).gone(1).reported_failed(0)
    again = seen(failed)
    assert again.status.attempt == 2
    assert again.status.internal.group is not None
    created = plan(again.with_status(backoff={"count": 1}).snapshot, NOW).actions
    assert CreateWorker(1, 2, 3) in created


def test_success_of_an_earlier_attempt_does_not_count() -> None:
    old = Succeeded(attempt=1, workers=[WorkerRange(first=0, last=1)])
    scene = job(3).running(attempt=2).with_status(succeeded=old).gone(1)
    assert plan(scene.snapshot, NOW).status.attempt == 3


def test_exit_of_a_deleted_worker_is_no_success() -> None:
    scene = job(3).running().succeeded(1, seconds_ago=2).deleted(1, seconds_ago=5)
    decided = plan(scene.snapshot, NOW)
    assert decided.status.attempt == 2
    assert [event.reason for event in decided.events] == [Reason.WORKER_DISRUPTED]


def test_before_the_rendezvous_no_success_is_stored() -> None:
    scene = job(3).running().with_agents().with_status(group={"created_in_attempt": 1}, attempt=2)
    assert plan(scene.succeeded(1).snapshot, NOW).status.internal.succeeded is None


def test_stored_workers_are_runs_of_indexes() -> None:
    status = plan(job(8).running().succeeded(1, 2, 3, 6).snapshot, NOW).status
    assert status.internal.succeeded == Succeeded(
        attempt=1, workers=[WorkerRange(first=1, last=3), WorkerRange(first=6, last=6)]
    )
    assert status.succeeded_workers == {1, 2, 3, 6}
