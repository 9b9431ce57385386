"""What a restart says about itself."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, job
from tests.unit.domain.recovering import RUNS
from trainyard.domain.plan import plan


def without_agent(scene: Scene, index: int) -> Scene:
    """The agent of this worker has never connected."""
    return replace(scene, agents={uid: each for uid, each in (scene.agents or {}).items() if uid != f"pod-{index}-1"})


@pytest.mark.parametrize(
    ("connected", "phrase"),
    [
        ((2,), "creating a new pod for worker 0, because the agent of worker 0 is not connected, and restarting"),
        ((), "creating new pods for 2 workers (0, 2), because the agents of workers 0, 2 are not connected, and"),
    ],
)
def test_worker_without_connected_agent_gets_a_pod(connected: tuple[int, ...], phrase: str) -> None:
    failed = RUNS.reported_failed(1)
    agents = {
        uid: agent
        for uid, agent in (failed.agents or {}).items()
        if uid in {"pod-1-1", *(f"pod-{i}-1" for i in connected)}
    }
    assert phrase in plan(replace(failed, agents=agents).snapshot, NOW).events[0].note


def test_worker_on_unreachable_node_counts_as_disconnected() -> None:
    """No agent is connected, so that none is given up as lost."""
    scene = RUNS.disconnected(0).disconnected(1).failed(1).with_unreachable_node(2)
    assert "because the agent of worker 2 is not connected" in plan(scene.snapshot, NOW).events[0].note


RULE = {"action": "RestartElsewhere", "exitCodes": [9]}
ELSEWHERE = job(3, recovery={"rules": [RULE]}, template=SUPERVISED).running().with_agents()


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(without_agent(RUNS.deleted(2), 2), id="deleted"),
        pytest.param(without_agent(RUNS.succeeded(2), 2), id="ended"),
        pytest.param(without_agent(RUNS.waiting(2, "ErrImagePull"), 2), id="not started"),
        pytest.param(ELSEWHERE.pod(2, node="node1"), id="on an avoided node"),
    ],
)
def test_other_new_pods_are_not_called_disconnected(scene: Scene) -> None:
    note = plan(scene.reported_failed(1, exit_code=9, seconds_ago=60).snapshot, NOW).events[0].note
    assert "creating" in note
    assert "not connected" not in note
