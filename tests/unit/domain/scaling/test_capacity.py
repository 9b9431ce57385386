"""An elastic group that lacks room for some of its workers goes on without them, and grows when there is room."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, because, condition, job, told
from tests.unit.domain import passing
from tests.unit.domain.passing import act, decided, names
from trainyard.api.internal_status import Group, Joining, Replacement
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.state.snapshot import AgentView, Doing, Exit, LeaveView, Trouble

NO_ROOM = Trouble("Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu")
ELASTIC = {"maxReplicas": 6, "shrinkAfterSeconds": 60, "growAfterSeconds": 30}


def running(workers: int, **fields: Any) -> Scene:
    """So many workers with agents, all of which run."""
    return passing.running(workers, elastic={**ELASTIC, **fields})


def change(scene: Scene, index: int, agent: AgentView | None = None, **fields: Any) -> Scene:
    """Something about the newest pod of a worker is otherwise."""
    newest = max(pod.attempt for pod in scene.pods if pod.index == index)
    uid = f"pod-{index}-{newest}"
    pods = tuple(replace(pod, **fields) if pod.uid == uid else pod for pod in scene.pods)
    heard = {**(scene.agents or {}), **({uid: agent} if agent else {})}
    return replace(scene, pods=pods, agents=heard)


def placed(scene: Scene, index: int, *, waiting: bool = True) -> Scene:
    """A worker's newest pod has a place and runs; its agent waits for the others."""
    attempt = max(pod.attempt for pod in scene.pods if pod.index == index)
    agent = AgentView(attempt, Doing.WAITING if waiting else Doing.RUNNING, since=NOW, said_at=NOW)
    runs = {"scheduled": True, "phase": "Running", "running": True, "ready": True, "node": "node9", "ip": "10.0.0.9"}
    return change(scene, index, agent, trouble=None, **runs)


def short(workers: int = 4, lost: int = 1, **fields: Any) -> Scene:
    """A worker was taken away; the pod in its place, of attempt 2, finds no node."""
    scene = running(workers, **fields).disrupted(lost)
    scene = act(change(scene, lost, ended=True, phase="Failed"))
    assert scene.status.attempt == 2
    return change(act(ready(scene)), lost, trouble=NO_ROOM)


def ready(scene: Scene, doing: Doing = Doing.WAITING) -> Scene:
    """All agents that were heard are at the attempt of now."""
    agents = {
        uid: replace(agent, attempt=scene.status.attempt, doing=doing) for uid, agent in (scene.agents or {}).items()
    }
    return replace(scene, agents=agents)


def shrunk(**fields: Any) -> Scene:
    """The verdict is stored, worker 1 has got the place of the last one, and the group of 3 runs as attempt 3."""
    scene = act(act(short(**fields), 60), 60)
    scene = placed(scene, 1)
    scene = act(ready(scene), 61)
    assert scene.status.internal.rendezvous
    return act(ready(scene, Doing.RUNNING), 61)


def test_lost_capacity_is_waited_for_and_then_done_without() -> None:
    scene = short()
    early = decided(scene, 50)
    assert (early.status.attempt, early.actions, early.requeue_after) == (2, [], 10)
    verdict = decided(scene, 60)
    assert [(event.type, event.reason, event.note) for event in verdict.events] == [
        (
            "Warning",
            Reason.INSUFFICIENT_CAPACITY,
            (
                "there was no room for all 4 workers within 60 seconds (pod train-worker-1-2: 0/3 nodes are available: 3 Insufficient"
                " nvidia.com/gpu): the group goes on with 3; restarting with 2 existing pods and a new pod for worker 1 as attempt 3"
            ),
        )
    ]
    status = verdict.status
    assert (status.attempt, status.restarts.resizes, status.restarts.failures) == (3, 1, 0)
    assert status.internal.group == Group(created_in_attempt=1, size=3, replacements=[Replacement(worker=1, attempt=3)])
    assert status.internal.joining == Joining(current_size=3, target_size=3, attempt=3)
    assert status.internal.previous_size == 4
    scene = act(act(scene, 60), 60)
    assert names(scene) == ["0-1", "2-1", "1-3"], "the last worker makes room"


def test_the_size_stays_what_it_may_be() -> None:
    assert decided(short(multipleOf=2), 60).status.internal.joining == Joining(current_size=2, target_size=2, attempt=3)
    assert decided(short(minReplicas=4), 600).status.attempt == 2, "so few are not allowed"


def test_a_job_that_is_not_elastic_waits() -> None:
    assert decided(short().wishing(elastic=None), 600).status.attempt == 2


def test_a_pod_at_which_the_scheduler_has_not_looked_is_waited_for() -> None:
    assert decided(change(short(), 1, trouble=None), 600).status.attempt == 2
    gated = Trouble("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
    assert decided(change(short(), 1, trouble=gated), 600).status.attempt == 2


def test_a_worker_that_takes_long_to_start_has_a_place() -> None:
    pulls = change(short(), 1, scheduled=True, node="node9", trouble=Trouble("ImagePullBackOff", "no such image"))
    assert decided(pulls, 600).status.attempt == 2


def test_a_quota_takes_room_as_well() -> None:
    scene = short()
    scene = replace(scene, pods=tuple(pod for pod in scene.pods if pod.index != 1))
    assert decided(scene, 600).status.attempt == 2, "it is not known why the pod is not there"
    refused = condition(C.RUNNING, holds=False, reason=Reason.QUOTA_EXCEEDED)
    assert decided(scene.saying(refused), 60).status.internal.joining == Joining(
        current_size=3, target_size=3, attempt=3
    )


def test_a_first_start_that_finds_no_room_for_all_is_a_smaller_one() -> None:
    scene = job(4, template=SUPERVISED, elastic=ELASTIC).created().with_status(attempt_start_time=NOW)
    scene = placed(placed(scene, 0, waiting=False), 3, waiting=False)
    scene = change(change(scene, 1, trouble=NO_ROOM), 2, trouble=NO_ROOM)
    status = decided(scene, 60).status
    assert (status.attempt, status.internal.group) == (
        2,
        Group(created_in_attempt=1, size=2, replacements=[Replacement(worker=1, attempt=2)]),
    )


def test_it_grows_after_a_pause_when_there_is_room() -> None:
    scene = shrunk()
    assert (scene.status.phase, scene.status.ready) == (Phase.RUNNING, "3/4")
    saying = scene.status.condition(C.RESIZING)
    assert saying is not None
    assert saying.message == "1 worker more is asked for at 12:01:30 UTC (elastic.growAfterSeconds)"
    assert decided(scene, 80).requeue_after == 10
    scene = act(act(scene, 90), 90)
    assert names(scene) == ["0-1", "2-1", "1-3", "3-3"]
    scene = act(change(scene, 3, trouble=NO_ROOM), 91)
    saying = scene.status.condition(C.RESIZING)
    assert saying is not None
    assert "3-3: 0/3 nodes are available" in saying.message
    assert decided(scene, 3600).status.attempt == 3, "the others train on"
    scene = act(placed(scene, 3), 3600)
    assert (scene.status.attempt, scene.status.internal.group and scene.status.internal.group.size) == (4, 4)
    assert told(scene.status.conditions)["Restarting"] == because(Reason.RESIZED)
    assert scene.status.internal.previous_size == 3


def growing() -> Scene:
    """Three train, and three that are to join have pods since second 90."""
    return act(act(act(shrunk().wishing(replicas=6), 62), 90), 90)


def test_where_there_is_room_for_some_those_join() -> None:
    scene = growing()
    assert names(scene)[3:] == ["3-3", "4-3", "5-3"]
    scene = change(change(change(scene, 3, trouble=NO_ROOM), 4, trouble=NO_ROOM), 5, trouble=NO_ROOM)
    assert act(scene, 3600).status.internal.joining == Joining(current_size=3, target_size=6, attempt=3), (
        "there is room for none"
    )
    scene = act(placed(scene, 5), 3600)
    assert scene.status.internal.joining == Joining(
        current_size=3, target_size=6, attempt=3, ready_since=NOW + timedelta(seconds=3600)
    )
    early = act(scene, 3659)
    assert (early.status.internal.joining, decided(early, 3659).requeue_after) == (scene.status.internal.joining, 1)
    saying = early.status.condition(C.RESIZING)
    assert saying is not None
    assert saying.message.endswith("is waited for until 13:01:00 UTC (elastic.shrinkAfterSeconds)")
    scene = act(scene, 3660)
    assert scene.status.internal.joining == Joining(current_size=3, target_size=4, attempt=3, requested_size=6)
    scene = act(scene, 3660)
    assert names(scene)[3:] == ["3-3"], "the others make room"
    saying = scene.status.condition(C.RESIZING)
    assert saying is not None
    assert saying.message.startswith("0 of 1 worker that joins is ready (2 more have their turn after that)")
    scene = act(placed(scene, 3), 3670)
    assert (scene.status.attempt, scene.status.internal.group and scene.status.internal.group.size) == (4, 4)


def test_nodes_that_come_one_by_one_are_one_change() -> None:
    scene = growing()
    scene = change(change(change(scene, 3, trouble=NO_ROOM), 4, trouble=NO_ROOM), 5, trouble=NO_ROOM)
    for index, second in ((4, 1000), (3, 1030), (5, 1059)):
        scene = act(act(placed(scene, index), second), second)
    assert (scene.status.attempt, scene.status.internal.group and scene.status.internal.group.size) == (4, 6)
    assert scene.status.restarts.resizes == 2, "the one that made it smaller, and this one"


def test_who_is_late_has_a_place_and_no_trouble() -> None:
    scene = change(act(placed(growing(), 3), 100), 4, trouble=NO_ROOM)
    scene = act(change(scene, 5, scheduled=True), 160)
    assert scene.status.internal.joining == Joining(current_size=3, target_size=5, attempt=3, requested_size=6)
    assert act(scene, 161).status.internal.joining == Joining(
        current_size=3, target_size=5, attempt=3, requested_size=6, ready_since=NOW + timedelta(seconds=161)
    ), "worker 4 gets the place of 5, and time for it"


def test_one_that_cannot_start_is_left_behind() -> None:
    pull = Trouble("ImagePullBackOff", "no such image")
    scene = act(act(placed(placed(growing(), 3), 4), 100), 100)
    stuck = change(scene, 5, scheduled=True, trouble=pull)
    scene = act(act(act(stuck, 160), 160), 160)
    assert (scene.status.attempt, scene.status.internal.group and scene.status.internal.group.size) == (4, 5)
    first = change(act(placed(growing(), 4), 100), 3, scheduled=True, trouble=pull)
    assert act(first, 3600).status.attempt == 3, "there is no group without worker 3"
    slow = change(act(placed(placed(growing(), 3), 4), 100), 5, scheduled=True)
    assert act(slow, 3600).status.attempt == 3, "it only takes long"


def test_another_wish_is_tried_as_a_whole() -> None:
    scene = change(change(placed(growing(), 5), 3, trouble=NO_ROOM), 4, trouble=NO_ROOM)
    scene = act(act(scene, 90), 150)
    assert scene.status.internal.joining
    assert (scene.status.internal.joining.target_size, scene.status.internal.joining.requested_size) == (4, 6)
    scene = act(scene.wishing(replicas=5), 151)
    assert scene.status.internal.joining
    assert (scene.status.internal.joining.target_size, scene.status.internal.joining.requested_size) == (5, None)


def test_several_wishes_in_a_pause_become_one_change() -> None:
    scene = shrunk()
    for seconds, wish in ((62, 5), (64, 6), (70, 4), (80, 5)):
        scene = act(scene.wishing(replicas=wish), seconds)
        assert (scene.status.attempt, len(scene.pods)) == (3, 3)
    scene = act(act(scene, 90), 90)
    assert names(scene)[3:] == ["3-3", "4-3"]


def test_those_that_join_take_no_place_for_which_the_group_waits() -> None:
    scene = shrunk()
    scene = act(change(scene.disrupted(1), 1, ended=True, phase="Failed"), 95)
    scene = act(act(scene, 96), 96)
    assert "1-4" in names(scene)
    assert "3-3" not in names(scene)


def test_those_that_are_there_give_their_places_to_the_group() -> None:
    """The group waits for a node, and two that have one wait for the group."""
    scene = act(placed(placed(growing(), 3), 4), 91)
    scene = act(change(scene.disrupted(1), 1, ended=True, phase="Failed"), 95)
    scene = change(act(ready(scene), 96), 1, trouble=NO_ROOM)
    assert scene.status.internal.attempt_start_time == NOW + timedelta(seconds=95)
    scene = act(act(scene, 155), 155)
    assert (scene.status.attempt, scene.status.internal.joining and scene.status.internal.joining.target_size) == (5, 3)
    assert [pod.index for pod in scene.pods] == [0, 2, 1]


def test_one_that_ends_before_it_joins_is_tried_again_after_a_pause() -> None:
    scene = act(act(shrunk(), 90), 90)
    lost = change(placed(scene, 3), 3, ended=True, running=False, phase="Failed", taken_by=Trouble("Evicted", "disk"))
    made = decided(lost, 100)
    assert [event.note for event in made.events] == [
        "worker 3 (pod train-worker-3-3) ended before it could join; the group trains on without it"
    ]
    scene = act(act(lost, 100), 100)
    assert (names(scene), scene.status.attempt) == (["0-1", "2-1", "1-3"], 3)
    assert names(act(scene, 125)) == ["0-1", "2-1", "1-3"]
    assert names(act(act(scene, 130), 130))[3:] == ["3-3"]


def test_all_pods_made_anew_are_as_many_as_before() -> None:
    scene = act(shrunk().wishing(recovery={"minRestartScope": "Process"}), 62)
    scene = replace(scene, agents={})
    scene = scene.with_status(scale_up_paused_since=NOW + timedelta(seconds=61))
    failed = act(change(scene, 0, ended=True, phase="Failed", taken_by=Trouble("Deleted", "gone")), 70)
    assert failed.status.internal.group is None
    empty = replace(failed, pods=())
    made = act(empty, 75)
    assert [(pod.index, pod.workers) for pod in made.pods] == [(0, 3), (1, 3), (2, 3)]


def test_the_clock_set_back_does_not_hold_it_up_for_longer() -> None:
    scene = shrunk().with_status(scale_up_paused_since=NOW + timedelta(days=9))
    seen = decided(scene, 62).status
    assert seen.internal.scale_up_paused_since == NOW + timedelta(seconds=62)


def test_an_end_in_good_order_has_the_time_that_was_given_for_it() -> None:
    scene = running(3, stopTimeoutSeconds=120).wishing(replicas=2)
    assert scene.agents is not None
    takes_part = {uid: replace(agent, leave=LeaveView()) for uid, agent in scene.agents.items()}
    scene = act(replace(scene, agents=takes_part))
    assert scene.status.internal.coordinated_stop
    assert scene.status.internal.coordinated_stop.reason == "the group gets 2 workers"
    asked = {uid: replace(agent, leave=LeaveView(asked=True, passed=7)) for uid, agent in takes_part.items()}
    scene = act(replace(scene, agents=asked), 1)
    assert scene.status.internal.coordinated_stop
    assert scene.status.internal.coordinated_stop.step == 8
    assert decided(scene, 100).status.attempt == 1
    assert decided(scene, 121).status.attempt == 2


@pytest.mark.parametrize("field", ["agent", "minRestartScope"])
def test_where_the_others_could_not_join_again_nobody_is_done_without(field: str) -> None:
    value = {"agent": "none", "minRestartScope": "Group"}[field]
    scene = short().wishing(recovery={field: value})
    assert decided(scene, 600).status.attempt == 2


def test_it_shrinks_again_where_that_was_not_enough() -> None:
    scene = change(ready(act(act(short(), 60), 60)), 1, trouble=NO_ROOM)
    status = decided(scene, 119).status
    assert status.attempt == 3
    status = decided(scene, 120).status
    assert (status.attempt, status.internal.joining and status.internal.joining.current_size) == (4, 2)


def test_on_demand_workers_do_not_take_the_places_of_spot_ones() -> None:
    """Two on demand, two spot: that the spot ones leave helps only where a spot one lacks its place."""
    assert decided(short(lost=3, onDemandReplicas=2), 60).status.internal.joining == Joining(
        current_size=3, target_size=3, attempt=3
    )
    status = decided(short(lost=1, onDemandReplicas=2), 60).status
    assert (status.internal.joining and status.internal.joining.current_size) == 1
    # Where that would be too few, a spot one gives up its place: it may be of another kind.
    status = decided(short(lost=1, onDemandReplicas=2, minReplicas=2), 60).status
    assert (status.internal.joining and status.internal.joining.current_size) == 3


def test_those_that_could_join_make_room_for_one_on_demand() -> None:
    scene = act(act(act(shrunk(onDemandReplicas=5).wishing(replicas=6), 62), 90), 90)
    scene = act(placed(change(change(scene, 3, trouble=NO_ROOM), 4, trouble=NO_ROOM), 5), 91)
    assert decided(scene, 140).status.internal.joining == scene.status.internal.joining
    assert names(act(act(scene, 600), 600))[3:] == ["3-3"]


def test_elastic_that_comes_while_workers_are_on_their_way_counts_from_then_on() -> None:
    scene = act(act(passing.running(1).wishing(replicas=5), 1), 2)
    for index in (1, 2, 3):
        scene = placed(scene, index)
    scene = act(change(scene, 4, trouble=NO_ROOM), 5)
    assert act(scene, 10_000).status.attempt == 1
    scene = act(scene.wishing(elastic=ELASTIC), 10)
    assert scene.status.internal.joining
    assert scene.status.internal.joining.ready_since == NOW + timedelta(seconds=10)
    assert decided(scene, 69).status.attempt == 1
    scene = act(act(act(scene, 70), 70), 71)
    assert (scene.status.attempt > 1, scene.status.size) == (True, 4)


def test_one_whose_main_container_has_failed_is_tried_again_though_another_runs_on() -> None:
    scene = placed(act(act(shrunk(), 90), 90), 3)
    assert scene.agents
    gone = replace(scene.agents["pod-3-3"], left_at=NOW + timedelta(seconds=95))
    failed = Exit(NOW + timedelta(seconds=95), 137, "OOMKilled", "")
    scene = change(scene, 3, gone, running=False, ready=False, exit=failed)
    assert "ended before it could join" in decided(scene, 100).events[0].note
    assert names(act(act(scene, 100), 100)) == ["0-1", "2-1", "1-3"]


def test_all_pods_are_not_made_anew_with_each_wish() -> None:
    scene = running(3, growAfterSeconds=30).wishing(recovery={"minRestartScope": "Group"})
    scene = scene.with_status(scale_up_paused_since=NOW)
    wished = act(act(scene.wishing(replicas=4), 5), 5)
    assert (wished.status.attempt, names(wished)) == (1, ["0-1", "1-1", "2-1"])
    said = wished.status.condition(C.RESIZING)
    assert said is not None
    assert "elastic.growAfterSeconds" in said.message
    assert 24 <= (decided(wished, 5).requeue_after or 0) <= 26
    assert act(act(wished, 30), 30).status.attempt == 2
    assert decided(scene.wishing(replicas=2), 5).status.attempt == 2, "to get smaller waits for nothing"


def test_bounds_raised_above_a_group_that_has_shrunk_are_told() -> None:
    scene = act(shrunk().wishing(elastic={**ELASTIC, "minReplicas": 4}), 62)
    assert (scene.status.attempt, scene.status.phase) == (3, Phase.RUNNING)
    said = scene.status.condition(C.SCALING_LIMITED)
    assert said is not None
    assert said.message == (
        "the group has 3 workers, which elastic does not allow: it trains on with them until it can grow"
    )
    scene = act(placed(act(act(scene, 90), 90), 3), 91)
    assert told(act(scene, 92).status.conditions)["ScalingLimited"] == because(Reason.SIZE_ALLOWED, holds=False)
