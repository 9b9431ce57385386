"""What the cluster says of the node of a failed worker: in the message, and as a reason to leave it at once."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.jobs import NOW, Scene, job
from trainyard.api.status import Avoidance, SuspectNode
from trainyard.domain.plan import plan
from trainyard.domain.state.node_signals import NodeSignals

XID = "condition GpuXidError is True (XID 79)"
BROKEN = NodeSignals(faults=(XID,))
LEAVING = NodeSignals(notes=("it is cordoned",))


def after(scene: Scene, signals: NodeSignals = BROKEN) -> tuple[Sequence[SuspectNode], str]:
    """Return the suspect nodes, and what the event of the restart says."""
    made = plan(replace(scene.snapshot, node_signals={"node1": signals}), NOW)
    return made.status.suspect_nodes, made.events[0].note


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(job(3).running().failed(1), id="an exception from outside"),
        pytest.param(job(3).running().failed(1, exit_code=91), id="a hang"),
        pytest.param(job(3).running().disrupted(1), id="an eviction"),
    ],
)
def test_failure_on_a_broken_node_avoids_it(scene: Scene) -> None:
    [node], message = after(scene)
    assert (node.name, node.failures, node.avoidance, node.reason) == ("node1", 1, Avoidance.PREFERRED, XID)
    assert f"; node node1: {XID}" in message
    assert "; node node1 is avoided where possible for 24 hours" in message


@pytest.mark.parametrize(
    ("scene", "signals"),
    [
        pytest.param(job(3).running().failed(1, cause="program"), BROKEN, id="an error of the program"),
        pytest.param(job(3).running().failed(1), LEAVING, id="a node that is cordoned"),
        pytest.param(job(3).running().failed(2), BROKEN, id="a failure on another node"),
        pytest.param(job(3, recovery={"avoidNodes": False}).running().failed(1), BROKEN, id="switched off"),
    ],
)
def test_other_failures_avoid_no_node(scene: Scene, signals: NodeSignals) -> None:
    assert after(scene, signals)[0] == []


def test_message_has_the_reason_of_an_eviction() -> None:
    assert "; node node1: it is cordoned" in after(job(3).running().disrupted(1), LEAVING)[1]


def test_excluded_nodes_stay_excluded() -> None:
    [node], _ = after(job(3).running().failed(1, exit_code=94))
    assert (node.avoidance, node.reason) == (Avoidance.REQUIRED, XID)
