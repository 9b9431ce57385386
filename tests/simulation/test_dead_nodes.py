"""A node that dies with a worker: what becomes of the pod that is left there."""

from collections.abc import Iterator

import pytest

from tests.simulation.engine import stored_objects
from tests.simulation.engine.cluster_controllers import EVICTED_AFTER, UNREACHABLE_AFTER
from tests.simulation.engine.convergence import come_to_rest
from tests.simulation.engine.engine_simulation import NAMESPACE, EngineSimulation
from tests.simulation.engine.invariants import FORCED_AFTER
from tests.simulation.engine.network_faults import Fault, Planned
from tests.simulation.engine.stored_objects import JOBS_PLACE
from tests.support.fake_cluster import Json
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.domain.stop.pod_removal import TRY_AGAIN
from trainyard.kube.resource import EVENTS

GONE_AFTER = UNREACHABLE_AFTER + EVICTED_AFTER + 30 + FORCED_AFTER
"""Seconds from the end of the node until its pods are removed: a grace of 30 s is among them."""
SPEC: Json = {"template": {"spec": {"containers": [{"name": "main", "image": "trainer:1"}]}}, "replicas": 2}


@pytest.fixture
def world() -> Iterator[EngineSimulation]:
    made = EngineSimulation(seed=3)
    yield made
    made.close()


def begin(world: EngineSimulation, **recovery: object) -> Json:
    """A job that runs. Returns its pod that is about to lose its node."""
    job = {"metadata": {"name": "job"}, "spec": {**SPEC, "recovery": recovery}}
    with world.server.acting("user"):
        world.server.cluster.create(TRAINING_JOBS, NAMESPACE, job)
    world.run(60)
    assert all(stored_objects.running(pod) for pod in world.pods())
    return world.pods()[0]


def there(world: EngineSimulation, pod: Json) -> bool:
    return world.life.pod(stored_objects.uid(pod)) is not None


def forced(world: EngineSimulation) -> list[str]:
    events = world.server.cluster.objects(EVENTS, NAMESPACE)
    return [event["note"] for event in events if event["reason"] == "ForcedDeletion"]


def test_pod_on_dead_node_is_removed(world: EngineSimulation) -> None:
    pod = begin(world)
    world.life.lose(str(stored_objects.node(pod)))
    world.run(GONE_AFTER - 10)
    assert there(world, pod), "not before its time"
    assert stored_objects.running(world.pods()[-1]), "its replacement has not waited for that"
    world.run(20)
    assert not there(world, pod)
    assert any(stored_objects.name(pod) in note for note in forced(world))


def test_returning_node_ends_its_own_pods(world: EngineSimulation) -> None:
    pod = begin(world)
    world.life.lose(str(stored_objects.node(pod)))
    world.run(GONE_AFTER - 30)
    assert there(world, pod)
    world.life.come_back(str(stored_objects.node(pod)), rebooted=False)
    world.run(1000)
    assert not there(world, pod)
    assert forced(world) == []


def test_disabled_removal_waits_for_the_node(world: EngineSimulation) -> None:
    pod = begin(world, forceDeleteAfterSeconds=0)
    world.life.lose(str(stored_objects.node(pod)))
    world.run(3600)
    assert there(world, pod)
    assert forced(world) == []


def test_lost_answer_does_no_harm(world: EngineSimulation) -> None:
    pod = begin(world)
    world.life.lose(str(stored_objects.node(pod)))
    world.run(GONE_AFTER - 10)
    world.network_faults.planned.append(Planned(Fault.ANSWER_LOST, "DELETE pods"))
    world.run(30)
    assert not there(world, pod)
    come_to_rest(world)


def test_failing_server_is_asked_again(world: EngineSimulation) -> None:
    pod = begin(world)
    world.life.lose(str(stored_objects.node(pod)))
    world.run(GONE_AFTER - 10)
    world.network_faults.planned.append(Planned(Fault.INTERNAL, "DELETE pods", times=2))
    world.run(30)
    assert there(world, pod)
    world.run(3 * TRY_AGAIN)
    assert not there(world, pod)


def test_rejected_removal_is_not_repeated(world: EngineSimulation) -> None:
    pod = begin(world)
    world.life.lose(str(stored_objects.node(pod)))
    world.run(GONE_AFTER - 10)
    refused = Planned(Fault.FORBIDDEN, "DELETE pods", times=100)
    world.network_faults.planned.append(refused)
    world.run(1000)
    assert there(world, pod)
    assert refused.times == 99
    (job,) = world.server.cluster.held(JOBS_PLACE)
    assert stored_objects.holds(job, "Running")
    assert not stored_objects.holds(job, "Stalled")


def test_quota_of_dead_pod_is_freed(world: EngineSimulation) -> None:
    pod = begin(world)
    world.life.lose(str(stored_objects.node(pod)))
    world.network_faults.quota = 2
    world.run(GONE_AFTER - 10)
    (job,) = world.server.cluster.held(JOBS_PLACE)
    assert not stored_objects.holds(job, "Running")
    world.run(60)
    (job,) = world.server.cluster.held(JOBS_PLACE)
    assert stored_objects.holds(job, "Running")
    assert {stored_objects.attempt(pod) for pod in world.pods()} == {2}


def test_finished_job_loses_its_dead_pods(world: EngineSimulation) -> None:
    pod, other = begin(world), world.pods()[1]
    world.life.lose(str(stored_objects.node(pod)))
    world.life.end(other, 2)  # no restart can repair it
    world.run(GONE_AFTER - 60)
    assert there(world, pod)
    world.run(120)
    assert not there(world, pod)


def test_foreground_deletion_completes(world: EngineSimulation) -> None:
    pod = begin(world)
    world.life.lose(str(stored_objects.node(pod)))
    world.run(120)
    world.life.delete_in_foreground(world.server.cluster.held(JOBS_PLACE)[0])
    world.run(60)
    assert len(world.server.cluster.held(JOBS_PLACE)) == 1
    world.run(GONE_AFTER - 120)
    assert world.pods() == []
    assert world.server.cluster.held(JOBS_PLACE) == []
