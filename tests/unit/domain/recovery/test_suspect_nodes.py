"""Nodes that hurt a job: which are remembered, for how long, and what the job says of them."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, ago, because, job, stored, summarize
from trainyard.api.reasons import Reason
from trainyard.api.status import MAX_SUSPECT_NODES, Avoidance, ConditionType as C, Phase, SuspectNode, TrainingJobStatus
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan

DAY = timedelta(hours=24)
XID = "RuntimeError: CUDA error: unspecified launch failure"
ELSEWHERE = {"action": "RestartElsewhere", "exitCodes": [7]}


def suspect(
    name: str = "node1", *, failures: int = 1, avoidance: Avoidance = Avoidance.NONE, hours: float = 1
) -> SuspectNode:
    """One that was struck so many hours ago."""
    return SuspectNode(
        name=name, failures=failures, avoidance=avoidance, reason="exit code 139", until=ago(hours * 3600) + DAY
    )


def after(scene: Scene) -> TrainingJobStatus:
    status = plan(scene.snapshot, NOW).status
    assert status == stored(status)
    return status


def running(*nodes: SuspectNode, **recovery: Any) -> Scene:
    return job(3, recovery=recovery).running().with_status(suspect_nodes=[*nodes])


@pytest.mark.parametrize(
    ("scene", "blamed"),
    [
        pytest.param(running().failed(1, exit_code=139), True, id="segmentation fault"),
        pytest.param(
            running().failed(1, message=XID, hardware_error="CUDA error"), True, id="words of broken hardware"
        ),
        pytest.param(running().rejected(1), True, id="the node refused the worker"),
        pytest.param(running().disrupted(1, reason="DeletionByTaintManager"), True, id="the node was lost"),
        pytest.param(running().disrupted(1, reason="ContainerStatusUnknown"), True, id="the node restarted"),
        pytest.param(running().failed(1, exit_code=94), True, id="the worker says so"),
        pytest.param(running().failed(1), False, id="an exception"),
        pytest.param(running().failed(1, exit_code=91), False, id="a hang, which all workers see"),
        pytest.param(running().failed(1, exit_code=137, reason="OOMKilled"), False, id="too little memory"),
        pytest.param(running().failed(1, exit_code=92, seconds_ago=10), False, id="a victim"),
        pytest.param(running().failed(1, exit_code=139, peer_lost=True), False, id="a victim that crashed"),
        pytest.param(running().disrupted(1), False, id="preemption"),
        pytest.param(running().deleted(1), False, id="deleted by somebody"),
        pytest.param(running().gone(1), False, id="gone without a trace"),
        pytest.param(running(avoidNodes=False).failed(1, exit_code=139), False, id="switched off"),
        pytest.param(running().failed(1, exit_code=139).pod(1, node=None), False, id="on no node"),
    ],
)
def test_what_a_node_is_blamed_for(scene: Scene, *, blamed: bool) -> None:
    assert bool(after(scene).suspect_nodes) is blamed


def test_once_is_chance() -> None:
    made = plan(running().failed(1, exit_code=139).snapshot, NOW)
    assert made.status.suspect_nodes == [
        SuspectNode(name="node1", failures=1, avoidance=Avoidance.NONE, reason="exit code 139", until=NOW + DAY)
    ]
    assert "avoided" not in _note(made)


def test_second_failure_avoids_node_and_reports_it() -> None:
    made = plan(running(suspect()).failed(1, exit_code=139).snapshot, NOW)
    (node,) = made.status.suspect_nodes
    assert (node.failures, node.avoidance, node.until) == (2, Avoidance.PREFERRED, NOW + DAY)
    assert (
        "node node1, the cause of 2 failures, is avoided where possible for 24 hours; restarting all workers"
        in _note(made)
    )
    assert made.status.restarts.failures == 1


def test_a_day_later_it_is_chance_again() -> None:
    (node,) = after(running(suspect(hours=25)).failed(1, exit_code=139)).suspect_nodes
    assert (node.failures, node.avoidance) == (1, Avoidance.NONE)
    assert after(running(suspect(hours=25)).failed(1)).suspect_nodes == []


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(running().failed(1, exit_code=94), id="by its exit code"),
        pytest.param(running(rules=[ELSEWHERE]).failed(1, exit_code=7), id="by the user's rule"),
    ],
)
def test_restart_elsewhere_is_not_counted(scene: Scene) -> None:
    made = plan(scene.snapshot, NOW)
    (node,) = made.status.suspect_nodes
    assert (node.name, node.avoidance) == ("node1", Avoidance.REQUIRED)
    assert (made.status.restarts.failures, made.status.restarts.disruptions) == (0, 1)
    assert "(not counted: " in _note(made)
    assert "; node node1 is avoided for 24 hours; restarting all workers" in _note(made)


def test_disruption_can_be_a_reason_to_move() -> None:
    rule = {"action": "RestartElsewhere", "reasons": ["UnexpectedAdmissionError"]}
    (node,) = after(running(rules=[rule]).rejected(1)).suspect_nodes
    assert (node.name, node.avoidance, node.reason) == ("node9", Avoidance.REQUIRED, "UnexpectedAdmissionError")


def test_required_avoidance_survives_a_lesser_failure() -> None:
    (node,) = after(running(suspect(avoidance=Avoidance.REQUIRED)).failed(1, exit_code=139)).suspect_nodes
    assert node.avoidance is Avoidance.REQUIRED


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(running(avoidNodes=False), id="switched off"),
        pytest.param(
            running(*(suspect(f"bad{i}", avoidance=Avoidance.REQUIRED) for i in range(MAX_SUSPECT_NODES))),
            id="all were left",
        ),
    ],
)
def test_useless_restart_elsewhere_is_counted(scene: Scene) -> None:
    """Otherwise a program that always ends with 94 would go round for ever."""
    status = after(scene.failed(1, exit_code=94))
    assert (status.restarts.failures, status.restarts.disruptions) == (1, 0)


def test_so_many_are_remembered_those_avoided_always_longest() -> None:
    always = [suspect(f"bad{i}", avoidance=Avoidance.REQUIRED, hours=20) for i in range(3)]
    chance = [suspect(f"node-{i}", hours=i) for i in range(MAX_SUSPECT_NODES - 3)]
    names = [node.name for node in after(running(*chance, *always).failed(1, exit_code=139)).suspect_nodes]
    assert len(names) == MAX_SUSPECT_NODES
    assert names[0] == "node1"
    assert {"bad0", "bad1", "bad2"} < {*names}
    assert f"node-{MAX_SUSPECT_NODES - 4}" not in names


def test_unscheduled_job_names_the_avoided_nodes() -> None:
    scene = _unplaced(suspect("bad", avoidance=Avoidance.REQUIRED), suspect("node1"))
    assert summarize(after(scene).conditions)[C.SCHEDULED] == because(Reason.UNSCHEDULABLE, holds=False)
    scheduled_condition = after(scene).condition(C.SCHEDULED)
    assert scheduled_condition is not None
    assert scheduled_condition.message.endswith("; this job avoids bad (see status.suspectNodes)")


def test_expired_avoidance_frees_unscheduled_workers() -> None:
    scene = _unplaced(suspect("bad", avoidance=Avoidance.REQUIRED, hours=23))
    assert plan(scene.snapshot, NOW).requeue_after == pytest.approx(3600)
    made = plan(scene.snapshot, NOW + timedelta(hours=1))
    assert (made.status.phase, made.status.attempt, made.status.suspect_nodes) == (Phase.RESTARTING, 2, [])
    assert (made.status.restart_count, made.events[0].reason) == (0, Reason.NODES_RELEASED)
    assert _note(made) == (
        "workers are unschedulable, and bad is no longer avoided; restarting all workers as attempt 2"
    )


def test_disabled_avoidance_releases_unscheduled_workers() -> None:
    scene = _unplaced(suspect("bad", avoidance=Avoidance.REQUIRED)).with_spec(recovery={"avoidNodes": False})
    assert after(scene).attempt == 2


@pytest.mark.parametrize("hours", [1, 25])
def test_who_has_a_place_is_left_in_peace(hours: float) -> None:
    node = suspect("bad", avoidance=Avoidance.REQUIRED, hours=hours)
    assert after(running(node)).attempt == 1
    starting = job(3).created().with_status(suspect_nodes=[node])
    for index in range(3):
        starting = starting.pod(index, scheduled=True, node=f"node{index}")
    made = plan(starting.snapshot, NOW)
    assert made.status.attempt == 1
    assert made.requeue_after != 0


def _unplaced(*nodes: SuspectNode) -> Scene:
    scene = job(3).created().with_status(suspect_nodes=[*nodes])
    return scene.waiting(1, "Unschedulable", "0/3 nodes are available", scheduled=False)


def _note(made: Plan) -> str:
    return made.events[0].note


def test_single_loss_of_a_node_gives_no_count() -> None:
    decided = plan(running().with_agents().disrupted(1, reason="AgentSilent").snapshot, NOW)
    (event,) = decided.events
    assert "; node node1 is avoided where possible for 24 hours" in event.note


def test_worker_without_a_node_cannot_avoid_it() -> None:
    failed = after(running(rules=[ELSEWHERE]).failed(1, exit_code=7).pod(1, node=None))
    assert (failed.restarts.failures, failed.restarts.disruptions) == (1, 0)
