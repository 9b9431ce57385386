"""What comes between workers and the group that they are to join: other wishes, other bounds, faults of the group, a clock that is set back."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.support.jobs import NOW, Scene
from tests.unit.domain.passing import act, decided, names
from tests.unit.domain.scaling.test_capacity import ELASTIC, NO_ROOM, change, growing, placed, ready, running, short
from trainyard.api.internal_status import Joining
from trainyard.api.status import ConditionType as C
from trainyard.domain.state.snapshot import Trouble


def settled(scene: Scene, seconds: float) -> Scene:
    """After as many passes as it takes."""
    for _ in range(8):
        after = act(scene, seconds)
        if after == scene:
            return scene
        scene = after
    raise AssertionError("it is decided otherwise again and again")


def crowded() -> Scene:
    """Three train, one that is to join is ready, one on its way, and the third was waited for."""
    scene = change(change(placed(growing(), 3), 4, scheduled=True), 5, trouble=NO_ROOM)
    return act(act(scene, 100), 160)


def test_a_wish_that_comes_back_is_asked_for_again() -> None:
    scene = crowded()
    assert scene.status.internal.joining == Joining(current_size=3, target_size=5, attempt=3, requested_size=6)
    scene = act(scene.wishing(replicas=3), 161)
    scene = settled(scene.wishing(replicas=6), 162)
    assert names(scene)[3:] == ["3-3", "4-3", "5-3"]


def test_no_size_is_grown_to_that_elastic_does_not_allow_any_more() -> None:
    scene = crowded()
    assert settled(scene.wishing(elastic={**ELASTIC, "multipleOf": 2}), 161).status.size == 4, "worker 3 is ready"
    scene = settled(scene.wishing(elastic={**ELASTIC, "minReplicas": 6}), 161)
    assert scene.status.internal.joining
    assert (scene.status.attempt, scene.status.internal.joining.target_size) == (3, 6)


def test_a_worker_of_the_group_that_is_replaced_drives_out_nobody() -> None:
    scene = settled(placed(placed(growing(), 3), 4), 100)
    scene = settled(change(scene, 5, scheduled=True), 200)
    scene = settled(change(scene.disrupted(1), 1, ended=True, phase="Failed"), 201)
    scene = settled(ready(scene), 202)
    assert names(scene)[-4:] == ["3-3", "4-3", "5-3", "1-4"]


def test_wishes_that_change_do_not_keep_out_who_is_ready() -> None:
    scene = settled(placed(growing(), 3), 100)
    for second, wish in ((120, 5), (140, 6), (159, 5)):
        scene = settled(scene.wishing(replicas=wish), second)
        scene = settled(change(change(scene, 4, trouble=NO_ROOM), wish - 1, trouble=NO_ROOM), second)
    assert settled(scene, 160).status.size == 4


def test_a_pod_that_was_sent_away_is_no_loss() -> None:
    scene = settled(placed(placed(growing(), 4), 5), 100)
    leaves: dict[str, Any] = {
        "deletion_time": NOW + timedelta(seconds=130),
        "taken_by": Trouble("Deleted", "it was deleted"),
    }
    scene = change(scene, 5, **leaves, ended=True, phase="Failed")
    assert decided(scene, 101).events == []
    assert decided(scene, 101).status.internal.scale_up_paused_since == scene.status.internal.scale_up_paused_since


def test_a_clock_that_is_set_back_sends_nobody_away() -> None:
    scene = settled(placed(growing(), 3), 100)
    for seconds in (80, -3600):
        assert names(settled(scene, seconds))[3:] == ["3-3", "4-3", "5-3"]
    patient = scene.wishing(elastic={**ELASTIC, "growAfterSeconds": 3600})
    assert names(settled(patient, 101))[3:] == ["3-3", "4-3", "5-3"]


def test_whom_the_agent_tells_sooner_than_the_node_is_waited_for() -> None:
    scene = act(placed(placed(placed(growing(), 3), 4), 5), 100)
    assert scene.status.attempt == 4
    early = change(placed(placed(placed(growing(), 3), 4), 5), 5, running=False)
    assert act(early, 100).status.attempt == 3


def test_one_that_joins_gives_its_place_to_the_group() -> None:
    """The group could not do with fewer: its bounds were raised meanwhile."""
    scene = settled(growing().wishing(elastic={**ELASTIC, "minReplicas": 4}), 91)
    scene = settled(placed(scene, 3), 92)
    scene = settled(change(scene.disrupted(1), 1, ended=True, phase="Failed"), 95)
    scene = settled(change(ready(scene), 1, trouble=NO_ROOM), 96)
    assert "3-3" in names(settled(scene, 154))
    scene = settled(scene, 155)
    assert not {"3-3", "4-3", "5-3"} & {*names(scene)}
    said = scene.status.condition(C.RESIZING)
    assert said is not None
    assert said.message == "3 workers more are asked for when the group has places of its own"


def test_who_cannot_start_ends_the_group_below_it_and_gives_no_place() -> None:
    scene = settled(placed(change(growing(), 3, trouble=NO_ROOM), 5), 100)
    scene = change(scene, 4, scheduled=True, trouble=Trouble("ImagePullBackOff", "no such image"))
    scene = settled(scene, 160)
    assert scene.status.internal.joining
    assert (scene.status.internal.joining.target_size, names(scene)[3:]) == (4, ["3-3"]), (
        "worker 3 gets a place of those"
    )


def test_a_pod_at_which_the_scheduler_has_not_looked_is_no_want_of_room() -> None:
    scene = placed(growing().wishing(elastic={**ELASTIC, "shrinkAfterSeconds": 0}), 3)
    assert names(settled(scene, 91))[3:] == ["3-3", "4-3", "5-3"]
    gated = change(change(scene, 4, trouble=Trouble("SchedulingGated", "")), 5, trouble=NO_ROOM)
    assert names(settled(gated, 92))[3:] == ["3-3", "4-3", "5-3"]
    looked_at = change(gated, 4, trouble=NO_ROOM)
    assert settled(looked_at, 93).status.size == 4


def test_places_that_only_spot_workers_have_are_given_up_for_one_on_demand() -> None:
    """Four nodes, none of them spot: worker 2 finds none while 3 and 5 have one."""
    scene = running(7, maxReplicas=7, minReplicas=3, onDemandReplicas=3)
    scene = replace(scene, agents={}).with_status(launched_attempt=0, running_time=None)
    for index in range(7):
        there = index in {0, 1, 3, 5}
        scene = change(scene, index, scheduled=there, running=False, ready=False, trouble=None if there else NO_ROOM)
    status = decided(scene.with_status(attempt_start_time=NOW), 60).status
    assert (status.internal.joining and status.internal.joining.current_size) == 4
    assert decided(short(lost=1, onDemandReplicas=2), 60).status.internal.joining == Joining(
        current_size=1, target_size=1, attempt=3
    )
