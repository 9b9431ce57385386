"""The event that tells what the pods of a job wait for: once, and again when it is something else."""

import pytest

from tests.support.jobs import NOW, Scene, job
from trainyard.domain.plan import plan
from trainyard.domain.state.snapshot import PodIssue


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


@pytest.mark.parametrize(
    ("first", "second", "repeated"),
    [
        ('configmap "a" not found', 'secret "b" not found', True),
        ('configmap "a" not found', 'configmap "b" not found', True),
        ("0/3 nodes are available: 3 Insufficient cpu", "0/5 nodes are available: 5 Insufficient cpu", False),
        ("0/3 nodes are available: 3 Insufficient cpu", "0/3 nodes are available: 3 had a taint", True),
    ],
)
def test_changed_obstacle_is_reported_again(first: str, second: str, *, repeated: bool) -> None:
    reason = "Unschedulable" if "nodes" in first else "CreateContainerConfigError"
    after, _ = reported(job(2).created().waiting(1, reason, first, scheduled="nodes" not in first))
    _, events = reported(after.waiting(1, reason, second, scheduled="nodes" not in second))
    assert [note for _, note in events] == [f"pod train-worker-1-1: {reason}: {second}"] * repeated


def test_one_worker_less_is_the_same_obstacle() -> None:
    both = job(2).created().waiting(0, "CreateContainerConfigError", "no a")
    after, _ = reported(both.waiting(1, "CreateContainerConfigError", "no a"))
    assert reported(after.pod(0, issue=None))[1] == []


def test_failed_pulls_of_one_image_are_one_event() -> None:
    def pulling(scene: Scene, reason: str, image: str) -> Scene:
        return scene.pod(
            1, scheduled=True, issue=PodIssue(reason, f"trying {reason}", f"container main, image {image}")
        )

    after, _ = reported(pulling(job(2).created(), "ErrImagePull", "x:1"))
    after, events = reported(pulling(after, "ImagePullBackOff", "x:1"))
    assert events == []
    _, events = reported(pulling(after, "ErrImagePull", "sidecar:1"))
    assert [note for _, note in events] == [
        "pod train-worker-1-1: ErrImagePull: trying ErrImagePull (container main, image sidecar:1)"
    ]


def test_what_is_on_its_way_is_no_trouble() -> None:
    assert reported(reported(job(2).created())[0])[1] == []
