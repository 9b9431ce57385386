"""Two jobs of four workers in a cluster with room for six: each may hold what the other waits for."""

from functools import partial

from tests.simulation.engine import stored_objects
from tests.simulation.engine.engine_simulation import NAMESPACE, EngineSimulation
from tests.simulation.engine.stored_objects import JOBS_PLACE
from tests.support.fake_cluster import Json
from trainyard.controller.reconcile.resources import TRAINING_JOBS

SEEDS = range(40)
TRAINING_SECONDS = 120.0
LIMIT_SECONDS = 7200.0
"""The longest delays, a few times over."""


def _both_finish(seed: int, **scheduling: object) -> bool:
    """Return whether both jobs are complete before the limit."""
    world = EngineSimulation(seed)
    try:
        world.life.slots = 6
        for name in ("a", "b"):
            _create(world, name, scheduling)
        while world.time.now < LIMIT_SECONDS:
            world.run(10)
            _train(world)
            if all(stored_objects.holds(job, "Complete") for job in world.server.cluster.held(JOBS_PLACE)):
                return True
        return False
    finally:
        world.close()


def _create(world: EngineSimulation, name: str, scheduling: object) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "trainer:1"}]}}
    spec: Json = {"replicas": 4, "template": template, "scheduling": scheduling}
    with world.server.acting("user"):
        world.server.cluster.create(TRAINING_JOBS, NAMESPACE, {"metadata": {"name": name}, "spec": spec})


def _train(world: EngineSimulation) -> None:
    """Let the workers of a job that runs as a whole succeed after their training."""
    for job in world.server.cluster.held(JOBS_PLACE):
        pods = [pod for pod in world.pods() if stored_objects.owner(pod) == stored_objects.uid(job)]
        if not (stored_objects.holds(job, "Running") and all(map(stored_objects.running, pods))):
            continue
        for pod in pods:
            world.time.after(TRAINING_SECONDS, partial(_succeed, world, pod))


def _succeed(world: EngineSimulation, pod: Json) -> None:
    found = world.life.pod(stored_objects.uid(pod))
    if found is not None and stored_objects.running(found) and not stored_objects.going(found):
        world.life.end(found, 0)


def test_two_jobs_with_half_the_nodes_finish() -> None:
    assert [seed for seed in SEEDS if not _both_finish(seed)] == []


def test_without_timeout_they_wait_for_ever() -> None:
    finish = (_both_finish(seed, partialTimeoutSeconds=0) for seed in SEEDS)
    assert not all(finish), "these seeds show no deadlock, so the other test shows nothing"
