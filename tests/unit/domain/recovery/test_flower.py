"""A federation of Flower as one job: the run on the server decides, a client rejoins alone, and a lost server is a new attempt."""

from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, job
from trainyard.api.reasons import Reason
from trainyard.api.roles import RoleName, member_index
from trainyard.api.status import Phase
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan

SERVER = member_index(RoleName.SERVER, 0)


def training(**fields: Any) -> Scene:
    return job(2, framework="flower", roles=[{"name": "server"}], **fields).running()


def act(scene: Scene) -> Plan:
    return plan(scene.snapshot, NOW)


def test_server_completes_the_job() -> None:
    made = act(training().succeeded(SERVER))
    assert (made.status.phase, made.status.restarts.failures) == (Phase.COMPLETE, 0)


def test_ended_clients_complete_nothing() -> None:
    assert act(training().succeeded(0).succeeded(1)).status.phase is Phase.RUNNING


def test_lost_client_rejoins_the_same_federation() -> None:
    made = act(training().deleted(1))
    assert (made.status.attempt, made.status.restarts.disruptions) == (1, 1)
    assert [each.reason for each in made.events] == [Reason.WORKER_DISRUPTED]


def test_failed_client_stops_nothing() -> None:
    made = act(training().failed(1, exit_code=1))
    assert (made.status.attempt, made.status.restarts.failures) == (1, 0)


@pytest.mark.parametrize(
    ("scene", "failures", "disruptions"),
    [
        pytest.param(training().deleted(SERVER), 0, 1, id="deleted"),
        pytest.param(training().disrupted(SERVER), 0, 1, id="preempted"),
        pytest.param(training().failed(SERVER, exit_code=1), 1, 0, id="run failed"),
        pytest.param(training().failed(SERVER, exit_code=137), 1, 0, id="SuperLink killed"),
    ],
)
def test_lost_server_is_a_new_attempt(scene: Scene, failures: int, disruptions: int) -> None:
    made = act(scene).status
    assert (made.attempt, made.restarts.failures, made.restarts.disruptions) == (2, failures, disruptions)


def test_failed_run_without_restarts_fails_the_job() -> None:
    scene = training(recovery={"maxRestarts": 0}).failed(SERVER, exit_code=1)
    assert act(scene).status.phase is Phase.FAILED


def test_server_without_flower_ends_the_job() -> None:
    assert act(training().failed(SERVER, exit_code=127)).status.phase is Phase.FAILED
