"""Workers that report nothing, or have signed off: which are given up, when, and which one is the cause."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, job
from tests.unit.domain.recovering import RUNS, act, after, made_in
from trainyard.api.agent_protocol import AgentState
from trainyard.api.status import (
    Avoidance,
    ConditionType as C,
    Phase,
)
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import AgentView


def test_silent_node_is_lost_while_others_answer() -> None:
    meets = after(RUNS.with_unreachable_node(1))
    assert (made_in(meets), meets.status.restarts.disruptions) == ([1, 2, 1], 1)
    assert "AgentSilent: its agent is silent" in str(meets.status.condition(C.RESTARTING))


def test_not_before_it_is_certain() -> None:
    soon = act(RUNS.with_unreachable_node(1, seconds_ago=5))
    assert (soon.status.attempt, soon.requeue_after) == (1, 3.0)


def test_silence_of_all_agents_is_no_failure() -> None:
    assert act(RUNS.with_unreachable_node(0).with_unreachable_node(1).with_unreachable_node(2)).status.attempt == 1


def test_disconnected_worker_gets_its_exit_from_the_node() -> None:
    soon = act(RUNS.disconnected(1, seconds_ago=5))
    assert (soon.status.attempt, soon.requeue_after) == (1, 7.0)
    assert made_in(after(RUNS.disconnected(1, seconds_ago=12))) == [1, 2, 1]


def test_worker_that_signed_off_is_waited_for() -> None:
    assert act(RUNS.reported_finished(1, seconds_ago=300)).status.attempt == 1


def test_exit_of_finished_worker_precedes_another_verdict() -> None:
    both = RUNS.reported_finished(0).reported_failed(1)
    assert (act(both).status.attempt, act(both).requeue_after) == (1, 11.0)
    by_worker_0 = job(3, template=SUPERVISED, lifecycle={"success": "Worker0"}).running().with_agents()
    ended = by_worker_0.reported_finished(0).reported_failed(1).succeeded(0)
    assert act(ended).status.phase is Phase.COMPLETE
    assert made_in(after(RUNS.reported_finished(0, seconds_ago=12).reported_failed(1))) == [2, 1, 1]


def test_success_just_after_restart_gets_a_new_pod() -> None:
    meets = after(RUNS.reported_failed(1)).with_agents(AgentState.WAITING, 1, 2).succeeded(0)
    again = after(meets)
    assert (made_in(again), again.status.restarts.disruptions) == ([3, 1, 1], 1)


def test_no_worker_is_lost_after_operator_network_outage() -> None:
    cut = RUNS.with_unreachable_node(0, 30).with_unreachable_node(1, 30).with_unreachable_node(2, 30)
    first = AgentView(1, AgentState.RUNNING, since=ago(1))
    back = replace(cut, agents={**(cut.agents or {}), "pod-2-1": first})
    assert (act(back).status.attempt, act(back).requeue_after) == (1, 7.0)


def test_rejected_agent_is_not_taken_for_lost() -> None:
    """The coordinator had no free connection: since then it accepts calls again."""
    crowded = replace(RUNS.disconnected(1, seconds_ago=60), coordinator_up_since=ago(5))
    assert (act(crowded).status.attempt, act(crowded).requeue_after) == (1, 7.0)
    vanished = replace(RUNS.with_unreachable_node(1, 60), coordinator_up_since=ago(5))
    assert (act(vanished).status.attempt, act(vanished).requeue_after) == (1, 3.0)
    assert made_in(after(replace(crowded, coordinator_up_since=ago(12)))) == [1, 2, 1]


def test_who_has_done_its_work_is_no_witness() -> None:
    alone = RUNS.with_unreachable_node(0, 30).with_unreachable_node(1, 30).reported_finished(2, 100)
    assert act(alone).status.attempt == 1


def test_failed_workers_own_connection_is_not_awaited() -> None:
    lost = RUNS.reported_failed(1, message="Connection reset by peer", peer_lost=True, seconds_ago=40)
    agents = dict(lost.agents or {})
    agents["pod-1-1"] = replace(agents["pod-1-1"], left_at=ago(20))
    assert act(replace(lost, agents=agents)).status.attempt == 2


def test_joiner_starting_through_second_verdict_gets_full_time() -> None:
    meets = after(RUNS.deleted(1))
    starts = job(3).running(2).pods[1]
    again = after(replace(meets, pods=(*meets.pods, starts)).with_agents(AgentState.WAITING, 0, 2).reported_failed(0))
    calls_late = again.with_agents(AgentState.WAITING, 0, 2)
    late = plan(calls_late.snapshot, NOW + timedelta(seconds=90))
    assert late.status.attempt == again.status.attempt


def test_without_agent_all_pods_are_replaced() -> None:
    scene = RUNS.deleted(1)
    assert plan(replace(scene.snapshot, agent=False), NOW).status.internal.group is None


def test_fractions_of_a_second_cause_no_loop() -> None:
    left = AgentView(1, AgentState.RUNNING, left_at=ago(7.999), vanished=True)
    assert act(replace(RUNS, agents={**(RUNS.agents or {}), "pod-1-1": left})).requeue_after == 1.0


def test_silent_node_is_avoided_at_once() -> None:
    (node,) = after(RUNS.with_unreachable_node(1)).status.suspect_nodes
    assert (node.name, node.avoidance) == ("node1", Avoidance.PREFERRED)


def test_worker_that_lost_silent_peer_is_no_cause() -> None:
    lost = RUNS.reported_failed(0, message="Connection closed by peer", peer_lost=True, seconds_ago=4).disconnected(
        1, seconds_ago=5
    )
    assert (act(lost).status.attempt, act(lost).requeue_after) == (1, 7.0)
    later = lost.disconnected(1, seconds_ago=12)
    assert (after(later).status.restarts.disruptions, after(later).status.restarts.failures) == (1, 0)


def test_new_leader_waits_for_running_workers_only() -> None:
    scene = RUNS.waiting(2, "ErrImagePull").reported_failed(1)
    agents = {uid: agent for uid, agent in (scene.agents or {}).items() if uid != "pod-2-1"}
    assert act(replace(scene, agents=agents, coordinator_up_since=ago(1))).status.attempt == 2


def test_agent_of_the_last_container_is_waited_for() -> None:
    alone = job(3, template=SUPERVISED).running().with_agents(AgentState.RUNNING, 0).reported_failed(0)
    restarted = replace(alone, coordinator_up_since=ago(5)).pod(1, running_since=ago(2))
    assert (act(restarted).status.attempt, act(restarted).requeue_after) == (1, 4.0)


def test_no_agent_is_waited_for_without_coordinator() -> None:
    scene = job(3, template=SUPERVISED).running().deleted(1)
    assert plan(replace(scene.snapshot, agent=True), NOW).status.attempt == 2


PEER = "RuntimeError: Read error [10.0.0.7]:9123: Connection reset by peer"


def with_a_new_leader(seconds_ago: float, message: str = PEER) -> Scene:
    """The leader before died with the node of worker 1: the others call the new one, and tell that they have lost a peer."""
    report: dict[str, Any] = {"message": message, "peer_lost": message == PEER, "seconds_ago": 20}
    scene = RUNS.reported_failed(0, **report).reported_failed(2, **report)
    agents = {
        uid: replace(agent, since=ago(seconds_ago)) for uid, agent in (scene.agents or {}).items() if uid != "pod-1-1"
    }
    return replace(scene, agents=agents, coordinator_up_since=ago(seconds_ago))


def test_worker_lost_with_the_leader_is_the_cause() -> None:
    soon = act(with_a_new_leader(7))
    assert (soon.status.attempt, soon.requeue_after) == (1, 5.0)
    status = act(with_a_new_leader(13)).status
    assert (status.attempt, status.restarts.failures, status.restarts.disruptions) == (2, 0, 1)
    (event,) = act(with_a_new_leader(13)).events
    assert "worker 1 of attempt 1 (pod train-worker-1-1 on node1) was disrupted: AgentSilent" in event.note


def test_who_cannot_call_and_trains_is_left_alone() -> None:
    calm = replace(RUNS, coordinator_up_since=ago(600))
    agents = {uid: agent for uid, agent in (calm.agents or {}).items() if uid != "pod-1-1"}
    assert act(replace(calm, agents=agents)).status.attempt == 1
    status = act(with_a_new_leader(13, "ValueError: boom")).status
    assert (status.attempt, status.restarts.failures) == (2, 1), "an error of their own is one"


def test_failure_reported_before_pod_removal_is_the_cause() -> None:
    scene = RUNS.reported_failed(1, message="rank 1 ended with exit code 1: boom", seconds_ago=9).deleted(
        1, seconds_ago=1
    )
    status = act(scene).status
    assert (status.restarts.failures, status.restarts.disruptions) == (1, 0)
    assert status.last_failure
    assert status.last_failure.message.endswith("boom")
    later = RUNS.reported_failed(1, message="asked to end", seconds_ago=1).deleted(1, seconds_ago=9)
    assert act(later).status.restarts.disruptions == 1, "it ended because it was taken away"


def test_giving_up_waiting_is_not_counted_again() -> None:
    """It never received its start: the operator was away."""
    meets = after(RUNS.reported_failed(1))
    assert (meets.status.attempt, meets.status.restarts.failures, meets.status.awaiting_rendezvous) == (2, 1, True)
    status = act(meets.failed(1, exit_code=1, seconds_ago=1)).status
    assert (status.attempt, status.restarts.failures, status.restarts.disruptions) == (3, 1, 1)
    assert made_in(meets.with_status(**dict(status))) == [1, 3, 1]


@pytest.mark.parametrize(
    "scene",
    [
        RUNS.disconnected(1, seconds_ago=2).rejected(1),
        RUNS.disconnected(1, seconds_ago=2).disrupted(1),
        RUNS.disconnected(1, seconds_ago=2).failed(1).pod(1, phase="Running", ended=False),
    ],
    ids=["ended", "disrupted", "exited beside a sidecar"],
)
def test_known_outcome_of_a_silent_worker_is_final(scene: Scene) -> None:
    assert act(scene).status.attempt == 2
