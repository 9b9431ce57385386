"""Pods on nodes that are lost: which of them are removed by force, and when."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, ago, job
from trainyard.api.agent_protocol import AgentState
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import RemovePod
from trainyard.domain.plan import plan
from trainyard.domain.state.observed_exits import FAR_AWAY
from trainyard.domain.stop.pod_removal import TRY_AGAIN

GRACE = 30


def dead(scene: Scene, *, seconds_ago: float = 1000, lost_ago: float | None = None, **fields: Any) -> Scene:
    """The scene, whose worker 1 was deleted with its node so long ago."""
    lost = ago(seconds_ago if lost_ago is None else lost_ago)
    return scene.deleted(1, seconds_ago=seconds_ago, grace=GRACE).pod(1, node_lost_at=lost, **fields)


def replaced(scene: Scene) -> Scene:
    """All workers run, in the next attempt, which is made of new pods."""
    return scene.running(attempt=2)


def removed(scene: Scene) -> list[str]:
    return [action.name for action in plan(scene.snapshot, NOW).actions if isinstance(action, RemovePod)]


RUNNING = job(3).running()
OLD = replaced(dead(RUNNING))
NEVER = {"forceDeleteAfterSeconds": 0}


@dataclass(frozen=True, slots=True)
class Case:
    """A scene, and whether the pod of worker 1 of attempt 1 is removed in it."""

    name: str
    scene: Scene
    gone: bool = True


@pytest.mark.parametrize(
    "case",
    [
        Case("of an earlier attempt", OLD),
        Case("of the attempt that runs: there is a verdict to come", dead(RUNNING), gone=False),
        Case("of a finished job", dead(RUNNING).finished(C.FAILED)),
        Case(
            "of a finished job that keeps its pods", dead(job(3, lifecycle={"cleanPods": "None"}).running()).finished()
        ),
        Case("of a suspended job", dead(job(3, lifecycle={"suspend": True}).running()).suspended()),
        Case("of a job that is being deleted", replace(dead(RUNNING), deleting=True)),
        Case("of another controller's job", replaced(dead(job(3, managedBy="example.com/x").running())), gone=False),
        Case("switched off", replaced(dead(job(3, recovery=NEVER).running())), gone=False),
        Case("it was not deleted", replaced(RUNNING.pod(1, node_lost_at=ago(1000))), gone=False),
        Case("its node is there, and slow to end it", replaced(RUNNING.deleted(1, seconds_ago=9999)), gone=False),
        Case("just before its time", replaced(dead(RUNNING, seconds_ago=GRACE + 299)), gone=False),
        Case("just in time", replaced(dead(RUNNING, seconds_ago=GRACE + 300))),
        Case("deleted long before the node was lost", replaced(dead(RUNNING, lost_ago=299)), gone=False),
        Case("and that is long ago, too", replaced(dead(RUNNING, seconds_ago=9999, lost_ago=300))),
        Case("removed before; a finalizer keeps it", replaced(dead(RUNNING, removed=True)), gone=False),
        Case("a time too far to wait for", replaced(dead(RUNNING, deletion_time=FAR_AWAY)), gone=False),
    ],
    ids=lambda case: case.name,
)
def test_who_is_removed(case: Case) -> None:
    assert removed(case.scene) == (["train-worker-1-1"] if case.gone else [])


def test_it_names_this_very_pod_and_says_why() -> None:
    (action,) = [a for a in plan(OLD.snapshot, NOW).actions if isinstance(a, RemovePod)]
    assert action.uid == "pod-1-1"
    assert action.note == (
        "pod train-worker-1-1 is deleted by force: node node1 is unreachable, and the grace period ended at 11:43:50 UTC"
    )


def test_calling_agent_outweighs_the_control_plane() -> None:
    connected = replaced(dead(RUNNING.with_agents(AgentState.RUNNING)))
    assert removed(connected) == []
    assert plan(connected.snapshot, NOW).requeue_after == TRY_AGAIN, "it may fall silent without a word"
    assert removed(replace(connected, agents={})) == ["train-worker-1-1"]


@pytest.mark.parametrize(
    "scene",
    [
        replaced(dead(RUNNING, seconds_ago=GRACE + 200)),
        dead(RUNNING, seconds_ago=GRACE + 200).finished(C.FAILED),
        dead(job(3, lifecycle={"suspend": True}).running(), seconds_ago=GRACE + 200).suspended(),
        replace(dead(RUNNING, seconds_ago=GRACE + 200), deleting=True),
    ],
    ids=["running", "finished", "suspended", "being deleted"],
)
def test_the_next_look_is_at_its_time(scene: Scene) -> None:
    decided = plan(scene.snapshot, NOW)
    assert decided.requeue_after == 100
    later = plan(scene.snapshot, NOW + timedelta(seconds=100))
    assert [a.name for a in later.actions if isinstance(a, RemovePod)] == ["train-worker-1-1"]
    assert later.requeue_after == TRY_AGAIN


def test_dead_pod_does_not_delay_time_to_live() -> None:
    scene = dead(job(3, lifecycle={"ttlSecondsAfterFinished": 60}).running(), seconds_ago=40).finished(seconds_ago=10)
    assert plan(scene.snapshot, NOW).requeue_after == 50
