"""An elastic group continues without unschedulable workers, and scales up when there is capacity."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.elastic_jobs import (
    ELASTIC,
    NO_CAPACITY,
    change_pod,
    elastic_running,
    scaling_up,
    scheduled,
    set_agents,
    short_of_capacity,
    shrunk,
)
from tests.support.jobs import NOW, SUPERVISED, because, condition, job, summarize, worker
from tests.support.reconciles import act, decided, names, running
from trainyard.api.agent_protocol import StopProgress
from trainyard.api.internal_status import Group, Joining, Replacement
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import PodIssue


def test_group_shrinks_after_capacity_timeout() -> None:
    scene = short_of_capacity()
    early = decided(scene, 50)
    assert (early.status.attempt, early.actions, early.requeue_after) == (2, [], 10)
    verdict = decided(scene, 60)
    assert [(event.type, event.reason, event.note) for event in verdict.events] == [
        (
            "Warning",
            Reason.INSUFFICIENT_CAPACITY,
            (
                "not all 4 workers were scheduled within 60 seconds (pod train-worker-1-2: 0/3 nodes are available: 3 Insufficient"
                " nvidia.com/gpu): the group continues with 3; restarting with 2 existing pods and a new pod for worker 1 as attempt 3"
            ),
        )
    ]
    status = verdict.status
    assert (status.attempt, status.restarts.resizes, status.restarts.failures) == (3, 1, 0)
    assert status.internal.group == Group(created_in_attempt=1, size=3, replacements=[Replacement(worker=1, attempt=3)])
    assert status.internal.joining == Joining(current_size=3, target_size=3, attempt=3)
    assert status.internal.previous_size == 4
    scene = act(act(scene, 60), 60)
    assert names(scene) == ["0-1", "2-1", "1-3"], "the last worker yields its node"


def test_shrinks_only_to_allowed_sizes() -> None:
    assert decided(short_of_capacity(multipleOf=2), 60).status.internal.joining == Joining(
        current_size=2, target_size=2, attempt=3
    )
    assert decided(short_of_capacity(minReplicas=4), 299).status.attempt == 2, "so few are not allowed"


def test_fixed_size_job_waits_for_capacity() -> None:
    assert decided(short_of_capacity().with_spec(elastic=None), 299).status.attempt == 2


def test_waits_for_pods_not_handled_by_scheduler() -> None:
    assert decided(change_pod(short_of_capacity(), 1, issue=None), 600).status.attempt == 2
    gated = PodIssue("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
    assert decided(change_pod(short_of_capacity(), 1, issue=gated), 600).status.attempt == 2


def test_slow_image_pull_is_not_lost_capacity() -> None:
    pulls = change_pod(
        short_of_capacity(), 1, scheduled=True, node="node9", issue=PodIssue("ImagePullBackOff", "no such image")
    )
    assert decided(pulls, 600).status.attempt == 2


def test_exceeded_quota_is_lost_capacity() -> None:
    scene = short_of_capacity()
    scene = replace(scene, pods=tuple(pod for pod in scene.pods if pod.index != 1))
    assert decided(scene, 600).status.attempt == 2, "it is not known why the pod is not there"
    refused = condition(C.RUNNING, holds=False, reason=Reason.QUOTA_EXCEEDED)
    assert decided(scene.with_conditions(refused), 60).status.internal.joining == Joining(
        current_size=3, target_size=3, attempt=3
    )


def test_first_start_shrinks_to_capacity() -> None:
    scene = job(4, template=SUPERVISED, elastic=ELASTIC).created().with_status(attempt_start_time=NOW)
    scene = scheduled(scheduled(scene, 0, waiting=False), 3, waiting=False)
    scene = change_pod(change_pod(scene, 1, issue=NO_CAPACITY), 2, issue=NO_CAPACITY)
    status = decided(scene, 60).status
    assert (status.attempt, status.internal.group) == (
        2,
        Group(created_in_attempt=1, size=2, replacements=[Replacement(worker=1, attempt=2)]),
    )


def test_pod_beyond_the_group_restarts_nothing() -> None:
    scene = job(4, template=SUPERVISED, elastic=ELASTIC).created().with_status(attempt_start_time=NOW)
    scene = replace(scene, pods=(*scene.pods, worker(4, workers=4)))
    for index in (0, 2, 3, 4):
        scene = scheduled(scene, index, waiting=False)
    assert decided(change_pod(scene, 1, issue=NO_CAPACITY), 60).status.attempt == 1


def test_scales_up_after_cooldown() -> None:
    scene = shrunk()
    assert (scene.status.phase, scene.status.ready) == (Phase.RUNNING, "3/4")
    resizing = scene.status.condition(C.RESIZING)
    assert resizing is not None
    assert resizing.message == "scale-up by 1 more worker is deferred until 12:01:30 UTC (elastic.growAfterSeconds)"
    assert decided(scene, 80).requeue_after == 10
    scene = act(act(scene, 90), 90)
    assert names(scene) == ["0-1", "2-1", "1-3", "3-3"]
    scene = act(change_pod(scene, 3, issue=NO_CAPACITY), 91)
    resizing = scene.status.condition(C.RESIZING)
    assert resizing is not None
    assert "3-3: 0/3 nodes are available" in resizing.message
    assert decided(scene, 3600).status.attempt == 3, "the others train on"
    scene = act(scheduled(scene, 3), 3600)
    assert (scene.status.attempt, scene.status.internal.group and scene.status.internal.group.size) == (4, 4)
    assert summarize(scene.status.conditions)["Restarting"] == because(Reason.RESIZED)
    assert scene.status.internal.previous_size == 3


def test_scheduled_workers_join_after_timeout() -> None:
    scene = scaling_up()
    assert names(scene)[3:] == ["3-3", "4-3", "5-3"]
    scene = change_pod(change_pod(change_pod(scene, 3, issue=NO_CAPACITY), 4, issue=NO_CAPACITY), 5, issue=NO_CAPACITY)
    assert act(scene, 3600).status.internal.joining == Joining(current_size=3, target_size=6, attempt=3), (
        "no worker is scheduled"
    )
    scene = act(scheduled(scene, 5), 3600)
    assert scene.status.internal.joining == Joining(
        current_size=3, target_size=6, attempt=3, ready_since=NOW + timedelta(seconds=3600)
    )
    early = act(scene, 3659)
    assert (early.status.internal.joining, decided(early, 3659).requeue_after) == (scene.status.internal.joining, 1)
    resizing = early.status.condition(C.RESIZING)
    assert resizing is not None
    assert resizing.message.endswith("not running by 13:01:00 UTC are dropped (elastic.shrinkAfterSeconds)")
    scene = act(scene, 3660)
    assert scene.status.internal.joining == Joining(current_size=3, target_size=4, attempt=3, requested_size=6)
    scene = act(scene, 3660)
    assert names(scene)[3:] == ["3-3"], "the others are dropped"
    resizing = scene.status.condition(C.RESIZING)
    assert resizing is not None
    assert resizing.message.startswith("0 of 1 joining worker is ready (2 more are requested after that)")
    scene = act(scheduled(scene, 3), 3670)
    assert (scene.status.attempt, scene.status.internal.group and scene.status.internal.group.size) == (4, 4)


def test_gradual_capacity_is_one_resize() -> None:
    scene = scaling_up()
    scene = change_pod(change_pod(change_pod(scene, 3, issue=NO_CAPACITY), 4, issue=NO_CAPACITY), 5, issue=NO_CAPACITY)
    for index, second in ((4, 1000), (3, 1030), (5, 1059)):
        scene = act(act(scheduled(scene, index), second), second)
    assert (scene.status.attempt, scene.status.internal.group and scene.status.internal.group.size) == (4, 6)
    assert scene.status.restarts.resizes == 2, "the one that made it smaller, and this one"


def test_late_worker_with_node_joins() -> None:
    scene = change_pod(act(scheduled(scaling_up(), 3), 100), 4, issue=NO_CAPACITY)
    scene = act(change_pod(scene, 5, scheduled=True), 160)
    assert scene.status.internal.joining == Joining(current_size=3, target_size=5, attempt=3, requested_size=6)
    assert act(scene, 161).status.internal.joining == Joining(
        current_size=3, target_size=5, attempt=3, requested_size=6, ready_since=NOW + timedelta(seconds=161)
    ), "worker 4 takes over the node of 5, with a new timeout"


def test_stuck_joining_worker_caps_size() -> None:
    pull = PodIssue("ImagePullBackOff", "no such image")
    scene = act(act(scheduled(scheduled(scaling_up(), 3), 4), 100), 100)
    stuck = change_pod(scene, 5, scheduled=True, issue=pull)
    scene = act(act(act(stuck, 160), 160), 160)
    assert (scene.status.attempt, scene.status.internal.group and scene.status.internal.group.size) == (4, 5)
    first = change_pod(act(scheduled(scaling_up(), 4), 100), 3, scheduled=True, issue=pull)
    assert act(first, 3600).status.attempt == 3, "there is no group without worker 3"
    slow = change_pod(act(scheduled(scheduled(scaling_up(), 3), 4), 100), 5, scheduled=True)
    assert act(slow, 3600).status.attempt == 3, "it only takes long"


def test_new_request_is_tried_in_full() -> None:
    scene = change_pod(change_pod(scheduled(scaling_up(), 5), 3, issue=NO_CAPACITY), 4, issue=NO_CAPACITY)
    scene = act(act(scene, 90), 150)
    assert scene.status.internal.joining
    assert (scene.status.internal.joining.target_size, scene.status.internal.joining.requested_size) == (4, 6)
    scene = act(scene.with_spec(replicas=5), 151)
    assert scene.status.internal.joining
    assert (scene.status.internal.joining.target_size, scene.status.internal.joining.requested_size) == (5, None)


def test_requests_during_cooldown_become_one_resize() -> None:
    scene = shrunk()
    for seconds, replicas in ((62, 5), (64, 6), (70, 4), (80, 5)):
        scene = act(scene.with_spec(replicas=replicas), seconds)
        assert (scene.status.attempt, len(scene.pods)) == (3, 3)
    scene = act(act(scene, 90), 90)
    assert names(scene)[3:] == ["3-3", "4-3"]


def test_joining_workers_take_no_node_from_group() -> None:
    scene = shrunk()
    scene = act(change_pod(scene.disrupted(1), 1, ended=True, phase="Failed"), 95)
    scene = act(act(scene, 96), 96)
    assert "1-4" in names(scene)
    assert "3-3" not in names(scene)


def test_group_takes_nodes_of_joining_workers() -> None:
    """The group waits for a node, and two that have one wait for the group."""
    scene = act(scheduled(scheduled(scaling_up(), 3), 4), 91)
    scene = act(change_pod(scene.disrupted(1), 1, ended=True, phase="Failed"), 95)
    scene = change_pod(act(set_agents(scene), 96), 1, issue=NO_CAPACITY)
    assert scene.status.internal.attempt_start_time == NOW + timedelta(seconds=95)
    scene = act(act(scene, 155), 155)
    assert (scene.status.attempt, scene.status.internal.joining and scene.status.internal.joining.target_size) == (5, 3)
    assert [pod.index for pod in scene.pods] == [0, 2, 1]


def test_failed_joining_worker_retries_after_cooldown() -> None:
    scene = act(act(shrunk(), 90), 90)
    lost = change_pod(
        scheduled(scene, 3), 3, ended=True, running=False, phase="Failed", disruption=PodIssue("Evicted", "disk")
    )
    made = decided(lost, 100)
    assert [event.note for event in made.events] == [
        "worker 3 (pod train-worker-3-3) exited before it joined; the group continues without it"
    ]
    scene = act(act(lost, 100), 100)
    assert (names(scene), scene.status.attempt) == (["0-1", "2-1", "1-3"], 3)
    assert names(act(scene, 125)) == ["0-1", "2-1", "1-3"]
    assert names(act(act(scene, 130), 130))[3:] == ["3-3"]


def test_group_restart_keeps_shrunk_size() -> None:
    scene = act(shrunk().with_spec(recovery={"minRestartScope": "Process"}), 62)
    scene = replace(scene, agents={})
    scene = scene.with_status(scale_up_paused_since=NOW + timedelta(seconds=61))
    failed = act(change_pod(scene, 0, ended=True, phase="Failed", disruption=PodIssue("Deleted", "gone")), 70)
    assert failed.status.internal.group is None
    empty = replace(failed, pods=())
    made = act(empty, 75)
    assert [(pod.index, pod.workers) for pod in made.pods] == [(0, 3), (1, 3), (2, 3)]


def test_clock_set_back_does_not_extend_cooldown() -> None:
    scene = shrunk().with_status(scale_up_paused_since=NOW + timedelta(days=9))
    seen = decided(scene, 62).status
    assert seen.internal.scale_up_paused_since == NOW + timedelta(seconds=62)


def test_resize_stop_has_its_own_timeout() -> None:
    scene = elastic_running(3, stopTimeoutSeconds=120).with_spec(replicas=2)
    assert scene.agents is not None
    takes_part = {uid: replace(agent, leave=StopProgress()) for uid, agent in scene.agents.items()}
    scene = act(replace(scene, agents=takes_part))
    assert scene.status.internal.coordinated_stop
    assert scene.status.internal.coordinated_stop.reason == "the group is resized to 2 workers"
    asked = {uid: replace(agent, leave=StopProgress(asked=True, passed=7)) for uid, agent in takes_part.items()}
    scene = act(replace(scene, agents=asked), 1)
    assert scene.status.internal.coordinated_stop
    assert scene.status.internal.coordinated_stop.step == 8
    assert decided(scene, 100).status.attempt == 1
    assert decided(scene, 121).status.attempt == 2


@pytest.mark.parametrize("field", ["agent", "minRestartScope"])
def test_never_shrinks_where_workers_cannot_rejoin(field: str) -> None:
    value = {"agent": "none", "minRestartScope": "Group"}[field]
    scene = short_of_capacity().with_spec(recovery={field: value})
    assert decided(scene, 299).status.attempt == 2


def test_shrinks_again_where_capacity_falls_further() -> None:
    scene = change_pod(set_agents(act(act(short_of_capacity(), 60), 60)), 1, issue=NO_CAPACITY)
    status = decided(scene, 119).status
    assert status.attempt == 3
    status = decided(scene, 120).status
    assert (status.attempt, status.internal.joining and status.internal.joining.current_size) == (4, 2)


def test_on_demand_workers_take_no_spot_nodes() -> None:
    """Two on demand, two spot: dropping spot workers helps only where a spot worker is unschedulable."""
    assert decided(short_of_capacity(lost=3, onDemandReplicas=2), 60).status.internal.joining == Joining(
        current_size=3, target_size=3, attempt=3
    )
    status = decided(short_of_capacity(lost=1, onDemandReplicas=2), 60).status
    assert (status.internal.joining and status.internal.joining.current_size) == 1
    # Where that would be too few, a spot worker yields its node, which may be of another kind.
    status = decided(short_of_capacity(lost=1, onDemandReplicas=2, minReplicas=2), 60).status
    assert (status.internal.joining and status.internal.joining.current_size) == 3


def test_joining_workers_yield_to_on_demand_worker() -> None:
    scene = act(act(act(shrunk(onDemandReplicas=5).with_spec(replicas=6), 62), 90), 90)
    scene = act(scheduled(change_pod(change_pod(scene, 3, issue=NO_CAPACITY), 4, issue=NO_CAPACITY), 5), 91)
    assert decided(scene, 140).status.internal.joining == scene.status.internal.joining
    assert names(act(act(scene, 600), 600))[3:] == ["3-3"]


def test_elastic_added_while_workers_join() -> None:
    scene = act(act(running(1).with_spec(replicas=5), 1), 2)
    for index in (1, 2, 3):
        scene = scheduled(scene, index)
    scene = act(change_pod(scene, 4, issue=NO_CAPACITY), 5)
    assert act(scene, 10_000).status.attempt == 1
    scene = act(scene.with_spec(elastic=ELASTIC), 10)
    assert scene.status.internal.joining
    assert scene.status.internal.joining.ready_since == NOW + timedelta(seconds=10)
    assert decided(scene, 69).status.attempt == 1
    scene = act(act(act(scene, 70), 70), 71)
    assert (scene.status.attempt > 1, scene.status.size) == (True, 4)


def test_failed_main_container_retries_despite_sidecar() -> None:
    scene = scheduled(act(act(shrunk(), 90), 90), 3)
    assert scene.agents
    gone = replace(scene.agents["pod-3-3"], left_at=NOW + timedelta(seconds=95))
    failed = Exit(NOW + timedelta(seconds=95), 137, "OOMKilled", "")
    scene = change_pod(scene, 3, gone, running=False, ready=False, exit=failed)
    assert "exited before it joined" in decided(scene, 100).events[0].note
    assert names(act(act(scene, 100), 100)) == ["0-1", "2-1", "1-3"]


def test_cooldown_limits_full_restarts() -> None:
    scene = elastic_running(3, growAfterSeconds=30).with_spec(recovery={"minRestartScope": "Group"})
    scene = scene.with_status(scale_up_paused_since=NOW)
    requested = act(act(scene.with_spec(replicas=4), 5), 5)
    assert (requested.status.attempt, names(requested)) == (1, ["0-1", "1-1", "2-1"])
    limited = requested.status.condition(C.RESIZING)
    assert limited is not None
    assert "elastic.growAfterSeconds" in limited.message
    assert 24 <= (decided(requested, 5).requeue_after or 0) <= 26
    assert act(act(requested, 30), 30).status.attempt == 2
    assert decided(scene.with_spec(replicas=2), 5).status.attempt == 2, "to get smaller waits for nothing"


def test_raised_bounds_are_reported() -> None:
    scene = act(shrunk().with_spec(elastic={**ELASTIC, "minReplicas": 4}), 62)
    assert (scene.status.attempt, scene.status.phase) == (3, Phase.RUNNING)
    limited = scene.status.condition(C.SCALING_LIMITED)
    assert limited is not None
    assert limited.message == (
        "the group has 3 workers, which elastic does not allow: it keeps them until it can scale up"
    )
    scene = act(scheduled(act(act(scene, 90), 90), 3), 91)
    assert summarize(act(scene, 92).status.conditions)["ScalingLimited"] == because(Reason.SIZE_ALLOWED, holds=False)
