"""A node that dies with a worker: what becomes of the pod that is left there."""

from collections.abc import Iterator

import pytest

from tests.simulation.engine import facts
from tests.simulation.engine.facts import JOBS_PLACE
from tests.simulation.engine.laws import FORCED_AFTER
from tests.simulation.engine.life import EVICTED_AFTER, UNREACHABLE_AFTER
from tests.simulation.engine.rest import come_to_rest
from tests.simulation.engine.weather import Fault, Planned
from tests.simulation.engine.world import NAMESPACE, World
from tests.support.fake_cluster import Json
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.domain.stop.pod_removal import TRY_AGAIN
from trainyard.kube.resource import EVENTS

GONE_AFTER = UNREACHABLE_AFTER + EVICTED_AFTER + 30 + FORCED_AFTER
"""Seconds from the end of the node until its pods are removed: a grace of 30 s is among them."""
SPEC: Json = {"template": {"spec": {"containers": [{"name": "main", "image": "trainer:1"}]}}, "replicas": 2}


@pytest.fixture
def world() -> Iterator[World]:
    made = World(seed=3)
    yield made
    made.close()


def begin(world: World, **recovery: object) -> Json:
    """A job that runs. Returns its pod that is about to lose its node."""
    job = {"metadata": {"name": "job"}, "spec": {**SPEC, "recovery": recovery}}
    with world.server.acting("user"):
        world.server.cluster.create(TRAINING_JOBS, NAMESPACE, job)
    world.run(60)
    assert all(facts.running(pod) for pod in world.pods())
    return world.pods()[0]


def there(world: World, pod: Json) -> bool:
    return world.life.pod(facts.uid(pod)) is not None


def forced(world: World) -> list[str]:
    events = world.server.cluster.objects(EVENTS, NAMESPACE)
    return [event["note"] for event in events if event["reason"] == "ForcedDeletion"]


def test_a_pod_on_a_node_that_never_comes_back_is_gone_in_the_end(world: World) -> None:
    pod = begin(world)
    world.life.lose(str(facts.node(pod)))
    world.run(GONE_AFTER - 10)
    assert there(world, pod), "not before its time"
    assert facts.running(world.pods()[-1]), "its replacement has not waited for that"
    world.run(20)
    assert not there(world, pod)
    assert any(facts.name(pod) in note for note in forced(world))


def test_a_node_that_is_back_in_time_ends_its_pods_itself(world: World) -> None:
    pod = begin(world)
    world.life.lose(str(facts.node(pod)))
    world.run(GONE_AFTER - 30)
    assert there(world, pod)
    world.life.come_back(str(facts.node(pod)), rebooted=False)
    world.run(1000)
    assert not there(world, pod)
    assert forced(world) == []


def test_whoever_does_not_want_it_waits_for_the_node(world: World) -> None:
    pod = begin(world, forceDeleteAfterSeconds=0)
    world.life.lose(str(facts.node(pod)))
    world.run(3600)
    assert there(world, pod)
    assert forced(world) == []


def test_an_answer_that_is_lost_does_no_harm(world: World) -> None:
    pod = begin(world)
    world.life.lose(str(facts.node(pod)))
    world.run(GONE_AFTER - 10)
    world.weather.planned.append(Planned(Fault.ANSWER_LOST, "DELETE pods"))
    world.run(30)
    assert not there(world, pod)
    come_to_rest(world)


def test_a_server_that_fails_is_asked_again(world: World) -> None:
    pod = begin(world)
    world.life.lose(str(facts.node(pod)))
    world.run(GONE_AFTER - 10)
    world.weather.planned.append(Planned(Fault.INTERNAL, "DELETE pods", times=2))
    world.run(30)
    assert there(world, pod)
    world.run(3 * TRY_AGAIN)
    assert not there(world, pod)


def test_a_refusal_is_no_verdict_on_the_job_and_not_asked_for_again(world: World) -> None:
    pod = begin(world)
    world.life.lose(str(facts.node(pod)))
    world.run(GONE_AFTER - 10)
    refused = Planned(Fault.FORBIDDEN, "DELETE pods", times=100)
    world.weather.planned.append(refused)
    world.run(1000)
    assert there(world, pod)
    assert refused.times == 99
    (job,) = world.server.cluster.held(JOBS_PLACE)
    assert facts.holds(job, "Running")
    assert not facts.holds(job, "Stalled")


def test_the_quota_that_a_dead_pod_holds_is_free_for_the_next(world: World) -> None:
    pod = begin(world)
    world.life.lose(str(facts.node(pod)))
    world.weather.quota = 2
    world.run(GONE_AFTER - 10)
    (job,) = world.server.cluster.held(JOBS_PLACE)
    assert not facts.holds(job, "Running")
    world.run(60)
    (job,) = world.server.cluster.held(JOBS_PLACE)
    assert facts.holds(job, "Running")
    assert {facts.attempt(pod) for pod in world.pods()} == {2}


def test_a_finished_job_loses_its_dead_pods_too(world: World) -> None:
    pod, other = begin(world), world.pods()[1]
    world.life.lose(str(facts.node(pod)))
    world.life.end(other, 2)  # which no restart mends
    world.run(GONE_AFTER - 60)
    assert there(world, pod)
    world.run(120)
    assert not there(world, pod)


def test_a_job_that_is_deleted_in_the_foreground_does_not_wait_for_ever(world: World) -> None:
    pod = begin(world)
    world.life.lose(str(facts.node(pod)))
    world.run(120)
    world.life.delete_in_foreground(world.server.cluster.held(JOBS_PLACE)[0])
    world.run(60)
    assert len(world.server.cluster.held(JOBS_PLACE)) == 1
    world.run(GONE_AFTER - 120)
    assert world.pods() == []
    assert world.server.cluster.held(JOBS_PLACE) == []
