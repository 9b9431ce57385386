"""Reconcile a job in tests, and carry out the actions at once."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.support.jobs import NOW, SUPERVISED, Scene, job, worker
from trainyard.domain.decisions import CreatePodGroup, CreateWorker, DeletePod, DeletePodGroups, Plan
from trainyard.domain.plan import plan


def running(workers: int, **spec: Any) -> Scene:
    """Return a job with so many workers, all running with their agents."""
    return job(workers, **{"template": SUPERVISED, **spec}).running().with_agents()


def decided(scene: Scene, seconds: float = 0) -> Plan:
    """Return the plan of so many seconds later."""
    return plan(scene.snapshot, NOW + timedelta(seconds=seconds))


def act(scene: Scene, seconds: float = 0) -> Scene:
    """Return the scene after a reconcile: its status is stored, its pods are created and deleted."""
    made = decided(scene, seconds)
    pods = [*scene.pods]
    for action in made.actions:
        match action:
            case CreateWorker(index, attempt, workers):
                pods.append(worker(index, attempt=attempt, workers=workers))
            case DeletePod(_, uid, _):
                pods = [pod for pod in pods if pod.uid != uid]
            case CreatePodGroup() | DeletePodGroups():
                pass
            case _:
                raise AssertionError(f"unexpected {action}")
    return replace(scene.with_status(**dict(made.status)), pods=tuple(pods))


def names(scene: Scene) -> list[str]:
    """Return worker and attempt of each pod, in the order of creation: `1-2`."""
    return [pod.name.removeprefix("train-worker-") for pod in scene.pods]
