"""Scale-up: the group trains until the joining workers are ready."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.elastic_jobs import change_pod, joining_ready
from tests.support.jobs import NOW, Scene, because, summarize
from tests.support.reconciles import act, decided, names, running
from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import MAX_REPLACEMENTS, Group, Joining, Rendezvous, Replacement
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase
from trainyard.coordinator.assignments import assignment
from trainyard.domain.decisions import CreateWorker
from trainyard.domain.scaling.resize import scale_up_events
from trainyard.domain.state.worker_views import PodIssue
from trainyard.domain.status.pod_rejections import Refusal, refused
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import Worker


def growing() -> Scene:
    """Two workers train, and two that join have pods."""
    scene = act(running(2).with_spec(replicas=4))
    assert scene.status.internal.joining == Joining(current_size=2, target_size=4, attempt=1)
    return act(scene)


def test_group_trains_until_joining_workers_are_ready() -> None:
    scene = growing()
    assert names(scene) == ["0-1", "1-1", "2-1", "3-1"]
    assert [pod.workers for pod in scene.pods] == [2, 2, 4, 4]
    scene = joining_ready(act(scene), 2)
    seen = decided(scene).status
    assert (seen.attempt, seen.phase, seen.ready, seen.restarts.resizes) == (1, Phase.RUNNING, "2/4", 0)
    assert summarize(seen.conditions)["Running"] == because(Reason.WORKERS_RUNNING)
    assert summarize(seen.conditions)["Resizing"] == because(Reason.WORKERS_JOINING)
    assert not seen.holds(C.SCALING_LIMITED)
    resizing = seen.condition(C.RESIZING)
    assert resizing is not None
    assert resizing.message == "1 of 2 joining workers is ready; the group trains until all are ready"
    scene = act(joining_ready(scene, 3))
    assert (scene.status.attempt, scene.status.internal.launched_attempt, scene.status.internal.joining) == (2, 2, None)
    others = [Replacement(worker=2, last_worker=3, attempt=1)]
    assert scene.status.internal.group == Group(created_in_attempt=1, size=4, replacements=others)
    assert (scene.status.restarts.resizes, names(act(scene))) == (1, ["0-1", "1-1", "2-1", "3-1"])
    assert summarize(act(scene).status.conditions)["Resizing"] == because(Reason.RESIZED, holds=False)


def test_waits_for_unprepared_workers() -> None:
    scene = joining_ready(joining_ready(growing(), 2), 3)
    agents = {**(scene.agents or {})}
    agents["pod-3-1"] = replace(agents["pod-3-1"], prepared=False)
    assert decided(replace(scene, agents=agents)).status.attempt == 1
    assert decided(scene).status.attempt == 2


@pytest.mark.parametrize(
    ("pod", "agent"),
    [
        ({"disruption": PodIssue("Evicted", "disk")}, {}),
        ({}, {"left_at": NOW}),
        ({}, {"state": AgentState.RUNNING}),
    ],
    ids=["disrupted", "disconnected", "running"],
)
def test_waits_for_joining_workers_that_cannot_join(pod: dict[str, Any], agent: dict[str, Any]) -> None:
    scene = joining_ready(joining_ready(growing(), 2), 3)
    view = replace((scene.agents or {})["pod-3-1"], **agent)
    assert decided(change_pod(scene, 3, view, **pod)).status.attempt == 1


def test_waits_for_the_first_report_of_joining_workers() -> None:
    scene = joining_ready(joining_ready(growing(), 2), 3)
    agents = {uid: agent for uid, agent in (scene.agents or {}).items() if uid != "pod-3-1"}
    assert decided(replace(scene, agents=agents)).status.attempt == 1


def test_scale_up_events() -> None:
    assert [event.note for event in decided(running(2).with_spec(replicas=3)).events] == [
        "replicas was raised: scaling up from 2 to 3 workers; the group trains until 1 joining worker is ready"
    ]
    verdict = decided(joining_ready(joining_ready(growing(), 2), 3))
    assert [event.note for event in verdict.events] == [
        "replicas was changed from 2 to 4; restarting with 2 existing pods and 2 joining workers as attempt 2"
    ]


def test_withdrawn_request_costs_nothing() -> None:
    scene = act(growing().with_spec(replicas=2))
    assert (scene.status.internal.joining, scene.status.attempt) == (
        Joining(current_size=2, target_size=2, attempt=1),
        1,
    )
    scene = act(scene)
    assert (scene.status.attempt, names(scene)) == (1, ["0-1", "1-1"])
    assert act(scene).status.internal.joining is None
    assert summarize(scene.status.conditions)["Resizing"] == because(Reason.RESIZED, holds=False)


def test_changed_request_is_followed() -> None:
    scene = act(act(growing().with_spec(replicas=3)))
    assert scene.status.internal.joining == Joining(current_size=2, target_size=3, attempt=1)
    assert names(scene) == ["0-1", "1-1", "2-1"]
    assert names(act(act(scene.with_spec(replicas=4)))) == ["0-1", "1-1", "2-1", "3-1"]
    scene = act(scene.with_spec(replicas=1))
    assert (scene.status.attempt, scene.status.internal.group) == (2, Group(created_in_attempt=1, size=1))
    assert names(act(scene)) == ["0-1"]


def test_failed_joining_worker_ends_the_wait() -> None:
    scene = joining_ready(growing(), 2)
    ended = [replace(pod, ended=True, phase="Failed") if pod.index == 3 else pod for pod in scene.pods]
    scene = act(replace(scene, pods=tuple(ended)))
    others = [Replacement(worker=2, attempt=1), Replacement(worker=3, attempt=2)]
    assert scene.status.internal.group == Group(created_in_attempt=1, size=4, replacements=others)
    assert scene.status.internal.launched_attempt == 1
    assert names(act(scene)) == ["0-1", "1-1", "2-1", "3-2"]


def test_failure_meanwhile_recovers_at_old_size() -> None:
    scene = act(growing().reported_failed(1))
    assert (scene.status.attempt, scene.status.restarts.failures) == (2, 1)
    assert scene.status.internal.group == Group(created_in_attempt=1, size=2)
    assert scene.status.internal.joining == Joining(current_size=2, target_size=4, attempt=1), "they go on to get ready"
    assert names(act(scene)) == ["0-1", "1-1", "2-1", "3-1"]


def test_group_restart_meanwhile_keeps_size() -> None:
    scene = growing()
    assert scene.agents is not None
    alone = replace(scene, agents={uid: agent for uid, agent in scene.agents.items() if uid != "pod-0-1"})
    scene = act(alone.failed(0).gone(1))
    assert (scene.status.attempt, scene.status.internal.group) == (2, None)
    pods = tuple(pod for pod in scene.pods if pod.index > 1)
    scene = act(replace(scene, pods=pods))
    assert [(pod.index, pod.attempt, pod.workers) for pod in scene.pods] == [(2, 1, 4), (3, 1, 4), (0, 2, 2), (1, 2, 2)]


def test_joining_pod_on_lost_node_is_replaced() -> None:
    scene = growing()
    lost = [replace(p, deletion_time=NOW, disruption=None) if p.index == 3 else p for p in scene.pods]
    assert names(act(replace(scene, pods=tuple(lost)))) == ["0-1", "1-1", "2-1", "3-1"], "its name is taken"
    scene = act(replace(scene, pods=scene.pods[:3]))
    assert names(scene) == ["0-1", "1-1", "2-1", "3-1"]


def test_suspended_job_has_no_joining_workers() -> None:
    scene = act(growing().with_spec(replicas=4, lifecycle={"suspend": True}))
    assert (scene.status.internal.joining, scene.status.phase) == (None, Phase.SUSPENDED)
    assert summarize(scene.status.conditions)["Resizing"] == because(Reason.SUSPENDED, holds=False)
    assert names(act(scene)) == []


def test_joining_workers_wait_during_restart() -> None:
    scene = growing()
    for index, runs in ((0, True), (2, False)):
        word = assignment(next(pod for pod in scene.pods if pod.index == index), scene.job)
        assert (word.attempt, word.run) == (1, runs)
    scene = act(scene.reported_failed(1))
    word = assignment(next(pod for pod in scene.pods if pod.index == 2), scene.job)
    assert (word.attempt, word.run) == (1, False)


def test_joining_pods_wait_for_rendezvous() -> None:
    scene = act(running(2).with_spec(replicas=3))
    made = worker_pod(Worker(scene.job, 2, 1, 3), AgentImage("operator:1"), CoordinatorEndpoint("https://operator"))
    variables = {each["name"]: each.get("value") for each in made["spec"]["containers"][0]["env"]}
    assert (variables["TRAINYARD_RENDEZVOUS"], variables["TRAINYARD_REPLICAS"]) == ("wait", "3")
    made = worker_pod(Worker(scene.job, 1, 1, 2), AgentImage("operator:1"), CoordinatorEndpoint("https://operator"))
    assert "TRAINYARD_RENDEZVOUS" not in {each["name"] for each in made["spec"]["containers"][0]["env"]}


def test_quota_rejects_joining_workers_alone() -> None:
    scene = act(running(2).with_spec(replicas=3))
    asked = decided(scene)
    assert [*asked.actions] == [CreateWorker(2, 1, 3)]
    status = refused(scene.job, asked, Refusal(Reason.QUOTA_EXCEEDED, "exceeded quota: gpus"), NOW).status
    assert summarize(status.conditions)["Resizing"] == because(Reason.QUOTA_EXCEEDED)
    assert summarize(status.conditions)["Running"] == because(Reason.WORKERS_RUNNING)


@pytest.mark.parametrize(
    "spec",
    [
        {"recovery": {"minRestartScope": "Group"}},
        {"recovery": {"agent": "none"}},
        {"template": {"spec": {"containers": [{"name": "main", "image": "i", "command": ["a", "$(WORLD_SIZE)"]}]}}},
    ],
    ids=["by the spec", "without agents", "the command was written for so many"],
)
def test_recreates_all_where_workers_cannot_join(spec: dict[str, Any]) -> None:
    scene = act(running(2, **spec).with_spec(replicas=3))
    assert (scene.status.attempt, scene.status.internal.group, scene.status.internal.joining) == (2, None, None)


def of_rows(number: int) -> Scene:
    """A group in which so many workers, no two of them side by side, got new pods for attempt 2."""
    rows = [Replacement(worker=2 * index, attempt=2) for index in range(number)]
    scene = running(2 * number).with_status(attempt=2, launched_attempt=2)
    scene = scene.with_status(group=Group(created_in_attempt=1, size=2 * number, replacements=rows))
    pods = tuple(replace(pod, attempt=scene.status.created_in_attempt(pod.index)) for pod in scene.pods)
    agents = {uid: replace(agent, attempt=2) for uid, agent in (scene.agents or {}).items()}
    scene = replace(scene, pods=pods, agents=agents)
    return scene.with_status(rendezvous=Rendezvous(attempt=2, address="10.0.0.0"))


def test_recreates_all_after_too_many_replacements() -> None:
    assert act(of_rows(MAX_REPLACEMENTS - 1).with_spec(replicas=1000)).status.internal.joining
    scene = act(of_rows(MAX_REPLACEMENTS).with_spec(replicas=1000))
    assert (scene.status.attempt, scene.status.internal.group) == (3, None)


def test_recreates_all_without_coordinator() -> None:
    scene = act(replace(running(2), agents=None).with_spec(replicas=3))
    assert (scene.status.attempt, scene.status.internal.group) == (2, None)


def test_group_that_does_not_grow_has_no_event() -> None:
    assert scale_up_events(running(2).snapshot, {}) == []
