"""A Ray cluster as one job: the driver on the head decides, a worker returns alone, and a lost head is a new attempt."""

from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, job
from trainyard.api.reasons import Reason
from trainyard.api.status import Phase
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan

HEAD = 13_000


def training(**fields: Any) -> Scene:
    return job(2, framework="ray", roles=[{"name": "head"}], **fields).running()


def act(scene: Scene) -> Plan:
    return plan(scene.snapshot, NOW)


def test_driver_completes_the_job() -> None:
    made = act(training().succeeded(HEAD))
    assert made.status.phase is Phase.COMPLETE
    assert made.status.restarts.failures == 0


def test_lost_worker_joins_the_same_cluster() -> None:
    made = act(training().deleted(1))
    assert (made.status.attempt, made.status.restarts.disruptions) == (1, 1)
    assert [each.reason for each in made.events] == [Reason.WORKER_DISRUPTED]


def test_failed_worker_stops_nothing() -> None:
    made = act(training().failed(1, exit_code=1))
    assert (made.status.attempt, made.status.restarts.failures) == (1, 0)


@pytest.mark.parametrize(
    ("scene", "failures", "disruptions"),
    [
        pytest.param(training().deleted(HEAD), 0, 1, id="deleted"),
        pytest.param(training().disrupted(HEAD), 0, 1, id="preempted"),
        pytest.param(training().failed(HEAD, exit_code=1), 1, 0, id="driver or GCS failed"),
    ],
)
def test_lost_head_is_a_new_attempt(scene: Scene, failures: int, disruptions: int) -> None:
    made = act(scene).status
    assert (made.attempt, made.restarts.failures, made.restarts.disruptions) == (2, failures, disruptions)


def test_head_without_ray_ends_the_job() -> None:
    assert act(training().failed(HEAD, exit_code=127)).status.phase is Phase.FAILED
