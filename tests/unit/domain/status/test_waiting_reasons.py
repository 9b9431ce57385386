"""The event that tells what the pods of a job wait for: once, and again when it is something else."""

import pytest

from tests.support.jobs import NOW, Scene, job
from trainyard.domain.plan import plan


def reported(scene: Scene) -> tuple[Scene, list[tuple[str, str]]]:
    decided = plan(scene.snapshot, NOW)
    after = scene.with_status(**{name: getattr(decided.status, name) for name in type(decided.status).model_fields})
    return after, [(event.reason, event.note) for event in decided.events]


@pytest.mark.parametrize(
    ("why", "scheduled", "reason"),
    [
        ("ImagePullBackOff", True, "ImagePullFailed"),
        ("Unschedulable", False, "Unschedulable"),
        ("CreateContainerConfigError", True, "ContainerCreateFailed"),
    ],
)
def test_it_is_reported_once(why: str, reason: str, *, scheduled: bool) -> None:
    scene = job(2).created().waiting(1, why, "it is so", scheduled=scheduled)
    after, events = reported(scene)
    assert (reason, f"pod train-worker-1-1: {why}: it is so") in events
    assert reported(after)[1] == []


def test_another_trouble_is_reported_again() -> None:
    after, _ = reported(job(2).created().waiting(1, "Unschedulable", "no node", scheduled=False))
    _, events = reported(after.waiting(1, "ErrImagePull", "not found"))
    assert events == [("ImagePullFailed", "pod train-worker-1-1: ErrImagePull: not found")]


def test_what_is_on_its_way_is_no_trouble() -> None:
    assert reported(reported(job(2).created())[0])[1] == []
