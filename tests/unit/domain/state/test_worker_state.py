"""The state of one worker, and the health of a group."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import Scene, ago, job, worker
from trainyard.api.reasons import Reason
from trainyard.domain.state.snapshot import PodIssue, PodView
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_state import Health, State, health, state

RUNS: dict[str, Any] = {"scheduled": True, "phase": "Running", "running": True}
EVICTED = PodIssue("Evicted", "the node is short of memory")


def ended(code: int, seconds_ago: float = 10, reason: str = "Error") -> Exit:
    return Exit(ago(seconds_ago), code, reason, "")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(worker(0), State.PENDING, id="not placed"),
        pytest.param(worker(0, scheduled=True), State.STARTING, id="placed"),
        pytest.param(worker(0, **RUNS), State.RUNNING, id="running"),
        pytest.param(worker(0, exit=ended(0), phase="Succeeded"), State.SUCCEEDED, id="ended well"),
        pytest.param(worker(0, exit=ended(3), phase="Failed"), State.FAILED, id="ended badly"),
        pytest.param(worker(0, exit=ended(0), phase="Running"), State.SUCCEEDED, id="ended well, a sidecar runs on"),
        pytest.param(worker(0, exit=ended(3), phase="Running"), State.FAILED, id="ended badly, a sidecar runs on"),
        pytest.param(worker(0, exit=ended(0), phase="Failed"), State.SUCCEEDED, id="ended well, a sidecar failed"),
        pytest.param(worker(0, phase="Succeeded"), State.SUCCEEDED, id="succeeded, its containers forgotten"),
        pytest.param(worker(0, phase="Failed"), State.DISRUPTED, id="refused by its node"),
        pytest.param(worker(0, phase="Unknown", scheduled=True), State.STARTING, id="its node does not answer"),
        pytest.param(worker(0, disruption=EVICTED, disrupted_at=ago(5)), State.DISRUPTED, id="deleted while pending"),
        pytest.param(worker(0, **RUNS, disruption=EVICTED, disrupted_at=ago(5)), State.DISRUPTED, id="evicted"),
        pytest.param(worker(0, **RUNS, disruption=EVICTED), State.DISRUPTED, id="evicted at an unknown time"),
    ],
)
def test_state_of_a_pod(pod: PodView, expected: State) -> None:
    assert state(pod) is expected


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        pytest.param(ended(1, 11), State.FAILED, id="it failed before"),
        pytest.param(ended(1, 10), State.DISRUPTED, id="in the same second it has the benefit of the doubt"),
        pytest.param(ended(1, 9), State.DISRUPTED, id="it failed after"),
        pytest.param(ended(143, 11), State.DISRUPTED, id="SIGTERM, by the clock of a node that is late"),
        pytest.param(ended(137, 11), State.DISRUPTED, id="SIGKILL, by the clock of a node that is late"),
        *(
            pytest.param(ended(code, 11), State.DISRUPTED, id=f"a stop signal of its image or a hook: {code}")
            for code in (129, 130, 131, 138, 140)
        ),
        pytest.param(ended(139, 11), State.FAILED, id="it crashed before"),
        pytest.param(ended(137, 11, "OOMKilled"), State.FAILED, id="out of memory is its own fault"),
        pytest.param(ended(0, 11), State.SUCCEEDED, id="it succeeded before"),
        pytest.param(ended(0, 9), State.DISRUPTED, id="it exited well because of the disruption"),
    ],
)
def test_exit_of_disrupted_pod(end: Exit, expected: State) -> None:
    assert state(worker(0, exit=end, disruption=EVICTED, disrupted_at=ago(10))) is expected


@pytest.mark.parametrize("end", [ended(1, 600), ended(0, 600), ended(1, 9)])
def test_clock_behind_excuses_exit(end: Exit) -> None:
    pod = worker(0, exit=end, disruption=EVICTED, disrupted_at=ago(10), clock_behind=True)
    assert state(pod) is State.DISRUPTED
    assert state(replace(pod, exit=ended(137, 600, "OOMKilled"))) is State.FAILED
    assert state(replace(pod, disruption=None, disrupted_at=None, exit=ended(1, 600))) is State.FAILED


def test_disruption_without_time_excuses_exit() -> None:
    assert state(worker(0, exit=ended(1), disruption=EVICTED)) is State.DISRUPTED


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
    assert health(scene.pods, 3) == expected
