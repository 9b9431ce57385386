"""A resize: remaining workers keep their pods, and the group restarts in place."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, job
from tests.support.reconciles import decided, running
from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import Group, Rendezvous, Replacement
from trainyard.api.reasons import Reason
from trainyard.api.status import Phase, TrainingJobStatus
from trainyard.coordinator.assignments import assignment
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.domain.decisions import DeletePod
from trainyard.domain.state.worker_views import AgentView


def after(scene: Scene) -> Scene:
    """With the verdict stored."""
    return scene.with_status(**dict(decided(scene).status))


def group(since: int, workers: int, **replaced: int) -> Group:
    """`w2=5`: the pod of worker 2 was made for attempt 5."""
    others = [Replacement(worker=int(name[1:]), attempt=attempt) for name, attempt in replaced.items()]
    return Group(created_in_attempt=since, size=workers, replacements=others)


def test_remaining_workers_keep_their_pods() -> None:
    scene = running(3).with_spec(replicas=2)
    verdict = decided(scene)
    assert verdict.status.internal.group == group(1, 2)
    assert (verdict.status.attempt, verdict.status.internal.launched_attempt) == (2, 2), "no pod is to be made"
    assert (verdict.status.restarts.resizes, verdict.status.restart_count) == (1, 0)
    assert [event.note for event in verdict.events] == [
        "replicas was changed from 3 to 2; restarting with 2 existing pods as attempt 2"
    ]
    scene = after(scene)
    assert [*decided(scene).actions] == [DeletePod("train-worker-2-1", "pod-2-1", Reason.STALE_ATTEMPT)]
    assert decided(scene).status.phase is Phase.RESTARTING


def test_lost_worker_is_replaced_in_resize() -> None:
    scene = running(3).gone(0).with_spec(replicas=2)
    assert decided(scene).status.internal.group == group(1, 2, w0=2)


def test_worker_on_unreachable_node_is_replaced_in_resize() -> None:
    scene = running(3).with_unreachable_node(1, seconds_ago=1).with_spec(replicas=2)
    assert decided(scene).status.internal.group == group(1, 2, w1=2)


@pytest.mark.parametrize(
    "spec",
    [
        {"recovery": {"minRestartScope": "Group"}},
        {"recovery": {"agent": "none"}},
        {
            "template": {
                "spec": {
                    "containers": [
                        {"name": "main", "image": "i", "command": ["train", "--world", "$(TRAINYARD_REPLICAS)"]}
                    ]
                }
            }
        },
    ],
    ids=["by the spec", "without agents", "the command was written for so many"],
)
def test_recreates_all_pods_where_none_can_stay(spec: dict[str, Any]) -> None:
    scene = job(2, **{"template": SUPERVISED, **spec}).running()
    if spec.get("recovery", {}).get("agent") != "none":
        scene = scene.with_agents()
    verdict = decided(scene.with_spec(replicas=3))
    assert verdict.status.internal.group is None
    assert verdict.events[0].note.endswith("from 2 to 3; restarting all workers as attempt 2")


def reported(scene: Scene, index: int, attempt: int = 1) -> Any:
    pod = next(pod for pod in scene.pods if (pod.index, pod.attempt) == (index, attempt))
    return assignment(pod, scene.job)


def test_assignments_contain_current_size() -> None:
    scene = after(running(3).with_spec(replicas=2))
    scene = scene.with_status(rendezvous=Rendezvous(attempt=2, address="10.0.0.0"))
    for replicas in (2, 5):
        word = reported(scene.with_spec(replicas=replicas), 1)
        assert (word.attempt, word.run, word.environment["TRAINYARD_REPLICAS"]) == (2, True, "2")
    with pytest.raises(RefusedError) as refused:
        reported(scene, 2)
    assert refused.value.reason is RejectionReason.REPLACED


def test_rendezvous_opens_at_new_size() -> None:
    scene = after(running(3).with_spec(replicas=2))
    ready = AgentView(2, AgentState.WAITING, reported_at=NOW, since=NOW)
    scene = replace(scene, agents={"pod-0-1": ready, "pod-1-1": ready})
    assert decided(scene).status.internal.rendezvous is None, "worker 2 has yet to end"
    scene = replace(scene, pods=scene.pods[:2])
    assert decided(scene).status.internal.rendezvous == Rendezvous(attempt=2, address="10.0.0.0")


def test_size_of_older_release_comes_from_pods() -> None:
    scene = running(3).with_status(attempt=2, launched_attempt=2, group=Group(created_in_attempt=1))
    assert scene.snapshot.size.current == 3
    assert scene.snapshot.size.resized_from is None
    assert decided(scene.with_spec(replicas=2)).status.restarts.resizes == 1


def test_membership_follows_group_size() -> None:
    status = TrainingJobStatus().evolve(attempt=3, group=group(1, 2, w7=9))
    assert [status.includes(index) for index in (0, 1, 2, 7)] == [True, True, False, False]
