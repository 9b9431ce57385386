"""A parameter server of DMLC as one job: the workers decide, and each loss restarts the group."""

from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, job
from trainyard.api.status import Phase
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan

SERVER, SCHEDULER = 14_000, 15_000


def training(**fields: Any) -> Scene:
    return job(2, framework="dmlc", roles=[{"name": "scheduler"}, {"name": "server"}], **fields).running()


def act(scene: Scene) -> Plan:
    return plan(scene.snapshot, NOW)


@pytest.mark.parametrize("ended", [(0, 1), (0, 1, SERVER, SCHEDULER)])
def test_workers_complete_the_job(ended: tuple[int, ...]) -> None:
    scene = training()
    for index in ended:
        scene = scene.succeeded(index)
    made = act(scene).status
    assert (made.phase, made.restarts.failures) == (Phase.COMPLETE, 0)


@pytest.mark.parametrize("ended", [(0,), (SERVER, SCHEDULER)])
def test_others_are_awaited(ended: tuple[int, ...]) -> None:
    scene = training()
    for index in ended:
        scene = scene.succeeded(index)
    assert act(scene).status.phase is Phase.RUNNING


@pytest.mark.parametrize("index", [1, SERVER, SCHEDULER])
def test_each_member_restarts_the_group(index: int) -> None:
    failed, lost = act(training().failed(index, exit_code=1)).status, act(training().deleted(index)).status
    assert (failed.attempt, failed.restarts.failures, failed.restarts.disruptions) == (2, 1, 0)
    assert (lost.attempt, lost.restarts.failures, lost.restarts.disruptions) == (2, 0, 1)
