"""The health of a group: whether it runs, and what keeps a pod from starting."""

import pytest

from tests.support.jobs import Scene, job
from trainyard.api.reasons import Reason
from trainyard.domain.state.group_health import Health, health

PLACED = job(3).created().pod(0, scheduled=True).pod(1, scheduled=True).pod(2, scheduled=True)
RUNNING = job(3).running()


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        pytest.param(
            job(3),
            Health(
                scheduled=False,
                running=False,
                reason=Reason.WORKERS_PENDING,
                message="0 of 3 workers started; 3 wait for a node",
            ),
            id="no pods at all",
        ),
        pytest.param(
            PLACED.gone(2),
            Health(
                scheduled=False,
                running=False,
                reason=Reason.WORKERS_PENDING,
                message="0 of 3 workers started; 1 waits for a node",
            ),
            id="one missing",
        ),
        pytest.param(
            PLACED,
            Health(
                scheduled=True,
                running=False,
                reason=Reason.WORKERS_STARTING,
                message="0 of 3 workers have started; see the events of pod train-worker-0-1",
            ),
            id="all placed",
        ),
        pytest.param(
            RUNNING.pod(1, running=False),
            Health(
                scheduled=True,
                running=False,
                reason=Reason.WORKERS_STARTING,
                message="2 of 3 workers have started; see the events of pod train-worker-1-1",
            ),
            id="one starting",
        ),
        pytest.param(
            RUNNING,
            Health(
                scheduled=True,
                running=True,
                reason=Reason.WORKERS_RUNNING,
                message="all 3 workers are running or have succeeded",
            ),
            id="running",
        ),
        pytest.param(
            RUNNING.succeeded(0),
            Health(
                scheduled=True,
                running=True,
                reason=Reason.WORKERS_RUNNING,
                message="all 3 workers are running or have succeeded",
            ),
            id="one has succeeded",
        ),
        pytest.param(
            RUNNING.failed(0),
            Health(
                scheduled=True, running=False, reason=Reason.WORKERS_STARTING, message="2 of 3 workers have started"
            ),
            id="a group with a failed worker does not run",
        ),
        pytest.param(
            PLACED.waiting(1, "ImagePullBackOff", "no such image"),
            Health(
                scheduled=True,
                running=False,
                reason=Reason.IMAGE_PULL_FAILED,
                message="pod train-worker-1-1: ImagePullBackOff: no such image",
            ),
            id="an image",
        ),
        pytest.param(
            PLACED.waiting(1, "CreateContainerConfigError", "no such secret").waiting(2, "ErrImagePull"),
            Health(
                scheduled=True,
                running=False,
                reason=Reason.CONTAINER_CREATE_FAILED,
                message="pod train-worker-1-1 (and 1 more): CreateContainerConfigError: no such secret",
            ),
            id="two have issues, the first is reported",
        ),
        pytest.param(
            PLACED.waiting(0, "Unschedulable", "0/3 nodes are available", scheduled=False),
            Health(
                scheduled=False,
                running=False,
                reason=Reason.UNSCHEDULABLE,
                message="pod train-worker-0-1: Unschedulable: 0/3 nodes are available",
            ),
            id="no node for one",
        ),
        pytest.param(
            PLACED.waiting(0, "SchedulingGated", scheduled=False),
            Health(
                scheduled=False,
                running=False,
                reason=Reason.WORKERS_PENDING,
                message="pod train-worker-0-1: SchedulingGated",
            ),
            id="a scheduling gate is no lack of nodes",
        ),
    ],
)
def test_health_of_a_group(scene: Scene, expected: Health) -> None:
    assert health(scene.pods, range(3)) == expected
