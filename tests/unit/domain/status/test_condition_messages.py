"""Messages of conditions: two sentences at most, and no two the same. The simulations check the same of all their statuses."""

import pytest

from tests.support.condition_messages import unreadable_messages
from tests.support.jobs import NOW, SUPERVISED, Scene, condition, job, stored
from trainyard.api.status import Condition, ConditionType as C, TrainingJobStatus
from trainyard.domain.plan import plan

RUNS = job(3, template=SUPERVISED).running().with_agents()
BUSY = (condition(C.RESTARTING), condition(C.RESIZING), condition(C.STRAGGLING), condition(C.SCALING_LIMITED))
SUSPEND = {"suspend": True}


def distinct(*conditions: Condition) -> list[Condition]:
    """Give stored conditions a message each: those of an earlier status differ too."""
    return [each.evolve(message=f"stored for {each.type}") for each in conditions]


SCENES = {
    "pending": job(3).created(),
    "no pods yet": job(3),
    "unschedulable": job(3).created().waiting(1, "Unschedulable", "0/3 nodes are available", scheduled=False),
    "image not found": job(3).created().waiting(1, "ErrImagePull", "not found"),
    "running": RUNS,
    "restarting without pods": job(3).started(2).with_conditions(*distinct(condition(C.RESTARTING))),
    "worker failed": RUNS.failed(1, exit_code=1),
    "restarts exhausted": job(3, recovery={"maxRestarts": 0}).running().failed(1),
    "not retryable": RUNS.failed(1, exit_code=127),
    "all succeeded": RUNS.succeeded(0, 1, 2).with_conditions(*distinct(*BUSY)),
    "suspended while busy": RUNS.with_conditions(*distinct(*BUSY)).with_spec(lifecycle=SUSPEND),
    "failed while busy": job(2, recovery={"maxRestarts": 0}).running().with_conditions(*distinct(*BUSY)).failed(0),
    "resized": job(2).running().with_spec(replicas=3),
    "ranks do not divide": job(3, parallelism={"tensor": 2}),
    "startup deadline": job(2, lifecycle={"startupDeadlineSeconds": 60}).created(),
}


def history(scene: Scene, steps: int = 3) -> list[TrainingJobStatus]:
    """Return the statuses of the next reconciles, in which nothing else happens."""
    statuses = []
    for _ in range(steps):
        status = stored(plan(scene.snapshot, NOW).status)
        statuses.append(status)
        scene = scene.with_status(conditions=status.conditions, attempt=status.attempt)
    return statuses


@pytest.mark.parametrize("scene", [pytest.param(scene, id=name) for name, scene in SCENES.items()])
def test_each_message_is_short_and_distinct(scene: Scene) -> None:
    assert [unreadable_messages(status) for status in history(scene)] == [[], [], []]


def test_long_and_repeated_messages_are_found() -> None:
    long = condition(C.FAILED).evolve(message="One. Two. Three.")
    twice = [condition(kind).evolve(message="the same") for kind in (C.RUNNING, C.STALLED)]
    found = unreadable_messages(TrainingJobStatus().evolve(conditions=[long, *twice]))
    assert found == ["One. Two. Three.", "the same"]
