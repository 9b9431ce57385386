"""The event that tells what the pods of a job wait for: once, and again when it is something else."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, because, job, summarize, worker
from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import Group, Replacement
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import AgentView, PodIssue


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
        ('configmap "data-v1" not found', 'configmap "data-v2" not found', True),
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


def test_unschedulable_pod_is_named_before_the_rendezvous() -> None:
    """The group waits for the new pod of worker 1 to meet: why it has no node is more useful than which workers are ready."""
    group = Group(created_in_attempt=1, size=2, replacements=[Replacement(worker=1, attempt=2)])
    scene = job(2, template=SUPERVISED).running().with_status(attempt=2, launched_attempt=2, running_time=None)
    scene = scene.with_status(group=group, attempt_start_time=ago(5))
    pending = worker(1, attempt=2, workers=2, issue=PodIssue("Unschedulable", "0/3 nodes"))
    agents = {scene.pods[0].uid: AgentView(2, AgentState.WAITING, since=ago(100))}
    waiting = replace(scene, pods=(scene.pods[0], pending), agents=agents)
    conditions = summarize(plan(waiting.snapshot, NOW).status.conditions)
    assert conditions[C.RUNNING] == conditions[C.SCHEDULED] == because(Reason.UNSCHEDULABLE, holds=False)
