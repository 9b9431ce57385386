"""Scale-ups that are interrupted: by other requests, other bounds, failures of the group, a clock that is set back."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.support.elastic_jobs import (
    ELASTIC,
    NO_CAPACITY,
    change_pod,
    elastic_running,
    scaling_up,
    scheduled,
    set_agents,
    short_of_capacity,
)
from tests.support.jobs import NOW, Scene
from tests.support.reconciles import act, decided, names
from trainyard.api.internal_status import Joining
from trainyard.api.status import ConditionType as C
from trainyard.domain.state.worker_views import PodIssue


def settled(scene: Scene, seconds: float) -> Scene:
    """Return the scene after as many reconciles as needed."""
    for _ in range(8):
        after = act(scene, seconds)
        if after == scene:
            return scene
        scene = after
    raise AssertionError("the decisions never settle")


def crowded() -> Scene:
    """Three workers train; of three joining ones, one is ready, one starts, and one has timed out."""
    scene = change_pod(change_pod(scheduled(scaling_up(), 3), 4, scheduled=True), 5, issue=NO_CAPACITY)
    return act(act(scene, 100), 160)


def test_repeated_request_is_tried_again() -> None:
    scene = crowded()
    assert scene.status.internal.joining == Joining(current_size=3, target_size=5, attempt=3, requested_size=6)
    scene = act(scene.with_spec(replicas=3), 161)
    scene = settled(scene.with_spec(replicas=6), 162)
    assert names(scene)[3:] == ["3-3", "4-3", "5-3"]


def test_never_scales_to_disallowed_size() -> None:
    scene = crowded()
    assert settled(scene.with_spec(elastic={**ELASTIC, "multipleOf": 2}), 161).status.size == 4, "worker 3 is ready"
    scene = settled(scene.with_spec(elastic={**ELASTIC, "minReplicas": 6}), 161)
    assert scene.status.internal.joining
    assert (scene.status.attempt, scene.status.internal.joining.target_size) == (3, 6)


def test_replacement_keeps_joining_workers() -> None:
    scene = settled(scheduled(scheduled(scaling_up(), 3), 4), 100)
    scene = settled(change_pod(scene, 5, scheduled=True), 200)
    scene = settled(change_pod(scene.disrupted(1), 1, ended=True, phase="Failed"), 201)
    scene = settled(set_agents(scene), 202)
    assert names(scene)[-4:] == ["3-3", "4-3", "5-3", "1-4"]


def test_changing_requests_do_not_delay_ready_workers() -> None:
    scene = settled(scheduled(scaling_up(), 3), 100)
    for second, replicas in ((120, 5), (140, 6), (159, 5)):
        scene = settled(scene.with_spec(replicas=replicas), second)
        scene = settled(change_pod(change_pod(scene, 4, issue=NO_CAPACITY), replicas - 1, issue=NO_CAPACITY), second)
    assert settled(scene, 160).status.size == 4


def test_dropped_joining_pod_is_no_failure() -> None:
    scene = settled(scheduled(scheduled(scaling_up(), 4), 5), 100)
    leaves: dict[str, Any] = {
        "deletion_time": NOW + timedelta(seconds=130),
        "disruption": PodIssue("Deleted", "it was deleted"),
    }
    scene = change_pod(scene, 5, **leaves, ended=True, phase="Failed")
    assert decided(scene, 101).events == []
    assert decided(scene, 101).status.internal.scale_up_paused_since == scene.status.internal.scale_up_paused_since


def test_clock_set_back_drops_no_joining_worker() -> None:
    scene = settled(scheduled(scaling_up(), 3), 100)
    for seconds in (80, -3600):
        assert names(settled(scene, seconds))[3:] == ["3-3", "4-3", "5-3"]
    patient = scene.with_spec(elastic={**ELASTIC, "growAfterSeconds": 3600})
    assert names(settled(patient, 101))[3:] == ["3-3", "4-3", "5-3"]


def test_waits_until_node_reports_running() -> None:
    scene = act(scheduled(scheduled(scheduled(scaling_up(), 3), 4), 5), 100)
    assert scene.status.attempt == 4
    early = change_pod(scheduled(scheduled(scheduled(scaling_up(), 3), 4), 5), 5, running=False)
    assert act(early, 100).status.attempt == 3


def test_joining_worker_yields_its_node() -> None:
    """The group could not do with fewer: its bounds were raised meanwhile."""
    scene = settled(scaling_up().with_spec(elastic={**ELASTIC, "minReplicas": 4}), 91)
    scene = settled(scheduled(scene, 3), 92)
    scene = settled(change_pod(scene.disrupted(1), 1, ended=True, phase="Failed"), 95)
    scene = settled(change_pod(set_agents(scene), 1, issue=NO_CAPACITY), 96)
    assert "3-3" in names(settled(scene, 154))
    scene = settled(scene, 155)
    assert not {"3-3", "4-3", "5-3"} & {*names(scene)}
    resizing = scene.status.condition(C.RESIZING)
    assert resizing is not None
    assert resizing.message == "scale-up by 3 more workers is deferred until all current workers are scheduled"


def test_unstartable_worker_caps_size_and_keeps_node() -> None:
    scene = settled(scheduled(change_pod(scaling_up(), 3, issue=NO_CAPACITY), 5), 100)
    scene = change_pod(scene, 4, scheduled=True, issue=PodIssue("ImagePullBackOff", "no such image"))
    scene = settled(scene, 160)
    assert scene.status.internal.joining
    assert (scene.status.internal.joining.target_size, names(scene)[3:]) == (4, ["3-3"]), (
        "worker 3 takes over a node of them"
    )


def test_unhandled_pod_is_not_unschedulable() -> None:
    scene = scheduled(scaling_up().with_spec(elastic={**ELASTIC, "shrinkAfterSeconds": 0}), 3)
    assert names(settled(scene, 91))[3:] == ["3-3", "4-3", "5-3"]
    gated = change_pod(change_pod(scene, 4, issue=PodIssue("SchedulingGated", "")), 5, issue=NO_CAPACITY)
    assert names(settled(gated, 92))[3:] == ["3-3", "4-3", "5-3"]
    looked_at = change_pod(gated, 4, issue=NO_CAPACITY)
    assert settled(looked_at, 93).status.size == 4


def test_spot_nodes_are_given_up_for_on_demand() -> None:
    """Four nodes, none of them spot: worker 2 finds none while 3 and 5 have one."""
    scene = elastic_running(7, maxReplicas=7, minReplicas=3, onDemandReplicas=3)
    scene = replace(scene, agents={}).with_status(launched_attempt=0, running_time=None)
    for index in range(7):
        there = index in {0, 1, 3, 5}
        scene = change_pod(
            scene, index, scheduled=there, running=False, ready=False, issue=None if there else NO_CAPACITY
        )
    status = decided(scene.with_status(attempt_start_time=NOW), 60).status
    assert (status.internal.joining and status.internal.joining.current_size) == 4
    assert decided(short_of_capacity(lost=1, onDemandReplicas=2), 60).status.internal.joining == Joining(
        current_size=1, target_size=1, attempt=3
    )
