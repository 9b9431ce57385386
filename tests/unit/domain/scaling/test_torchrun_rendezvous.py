"""Elastic jobs without the agent: torchrun forms the group again, and the operator keeps the healthy pods."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, job
from tests.support.reconciles import act, decided, names
from trainyard.api.internal_status import Group, Rendezvous, Replacement
from trainyard.api.recovery import RestartScope
from trainyard.api.status import Phase


def running(workers: int, **fields: Any) -> Scene:
    """So many workers that run torchrun."""
    fields = {"template": SUPERVISED, "elastic": {"maxReplicas": 6}, "recovery": {"agent": "none"}, **fields}
    return job(workers, **fields).running()


def test_lost_worker_is_replaced_while_others_train() -> None:
    scene = act(running(3).disrupted(1))
    assert (scene.status.attempt, scene.status.internal.backoff.scope) == (2, RestartScope.POD)
    assert scene.status.internal.group == Group(
        created_in_attempt=1, size=3, replacements=[Replacement(worker=1, attempt=2)]
    )
    assert not scene.status.awaiting_rendezvous, "no worker waits for the operator"
    assert scene.status.internal.rendezvous == Rendezvous(attempt=2, address="train-worker-0")
    scene = act(act(scene))
    assert names(scene) == ["0-1", "2-1", "1-2"]
    scene = scene.pod(1, scheduled=True, phase="Running", running=True, ready=True, node="node7", ip="10.0.0.7")
    assert act(scene).status.phase is Phase.RUNNING


def test_repeated_failure_backs_off() -> None:
    scene = act(running(3).failed(2))
    assert scene.status.restarts.failures == 1
    scene = act(act(scene))
    scene = act(scene.failed(2), 1)
    assert scene.status.internal.backoff.not_before == NOW + timedelta(seconds=3)
    scene = act(scene, 1)
    assert names(scene) == ["0-1", "1-1", "2-2"], "its log stays until then"
    assert decided(scene, 1).requeue_after == 2
    assert names(act(act(scene, 3), 3)) == ["0-1", "1-1", "2-3"]


def test_loss_of_worker_0_restarts_all() -> None:
    scene = act(running(3).disrupted(0))
    assert (scene.status.internal.group, scene.status.internal.backoff.scope) == (None, RestartScope.GROUP)


@pytest.mark.parametrize(
    ("replicas", "pods"),
    [(2, ["0-1", "1-1"]), (4, ["0-1", "1-1", "2-1", "3-2"])],
)
def test_resize_keeps_healthy_pods(replicas: int, pods: list[str]) -> None:
    scene = act(act(running(3).with_spec(replicas=replicas)))
    assert names(scene) == pods
    assert (scene.status.attempt, scene.status.awaiting_rendezvous) == (2, False)
    assert scene.status.internal.group
    assert scene.status.internal.group.size == replicas


def test_never_shrinks_because_torchrun_does() -> None:
    scene = act(act(running(3).disrupted(1)))
    assert decided(scene, 3600).status.attempt == 2


@pytest.mark.parametrize("fields", [{"elastic": None}, {"framework": "none"}], ids=["of a fixed size", "not torch"])
def test_other_jobs_without_agent_restart_as_group(fields: dict[str, Any]) -> None:
    assert act(running(3, **fields).disrupted(1)).status.internal.group is None
