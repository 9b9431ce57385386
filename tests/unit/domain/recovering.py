"""What the tests of recovery share: three workers that run with their agents, and what a verdict makes of them."""

from dataclasses import replace

from tests.support.jobs import NOW, SUPERVISED, Scene, job, stored
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan

RUNS = job(3, template=SUPERVISED).running().with_agents()


def after(scene: Scene) -> Scene:
    """The scene once the verdict on it is stored."""
    decided = plan(scene.snapshot, NOW)
    assert not decided.actions
    return replace(scene, status=stored(decided.status))


def act(scene: Scene) -> Plan:
    return plan(scene.snapshot, NOW)


def made_in(scene: Scene) -> list[int]:
    return [scene.status.created_in_attempt(index) for index in range(scene.spec.replicas)]
