"""What the tests of sizes share: passes over a job, whose actions are carried out at once."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.support.jobs import NOW, SUPERVISED, Scene, job, worker
from trainyard.domain.actions import CreateWorker, DeletePod, Plan
from trainyard.domain.plan import plan


def running(workers: int, **spec: Any) -> Scene:
    """So many workers with agents, all of which run."""
    return job(workers, **{"template": SUPERVISED, **spec}).running().attended()


def decided(scene: Scene, seconds: float = 0) -> Plan:
    """The plan of so many seconds later."""
    return plan(scene.snapshot, NOW + timedelta(seconds=seconds))


def act(scene: Scene, seconds: float = 0) -> Scene:
    """After a pass: its status is stored, pods were made and are gone."""
    made = decided(scene, seconds)
    pods = [*scene.pods]
    for action in made.actions:
        match action:
            case CreateWorker(index, attempt, workers):
                pods.append(worker(index, attempt=attempt, workers=workers))
            case DeletePod(_, uid, _):
                pods = [pod for pod in pods if pod.uid != uid]
            case _:
                raise AssertionError(f"nobody asked for {action}")
    return replace(scene.with_status(**dict(made.status)), pods=tuple(pods))


def names(scene: Scene) -> list[str]:
    """Worker and attempt of each pod, in the order in which they were made: `1-2`."""
    return [pod.name.removeprefix("train-worker-") for pod in scene.pods]
