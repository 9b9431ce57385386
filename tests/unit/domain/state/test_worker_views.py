"""The state of one worker."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import ago, worker
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import PodIssue, PodView, State

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
    assert pod.state is expected


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
    assert worker(0, exit=end, disruption=EVICTED, disrupted_at=ago(10)).state is expected


@pytest.mark.parametrize("end", [ended(1, 600), ended(0, 600), ended(1, 9)])
def test_clock_behind_excuses_exit(end: Exit) -> None:
    pod = worker(0, exit=end, disruption=EVICTED, disrupted_at=ago(10), clock_behind=True)
    assert pod.state is State.DISRUPTED
    assert replace(pod, exit=ended(137, 600, "OOMKilled")).state is State.FAILED
    assert replace(pod, disruption=None, disrupted_at=None, exit=ended(1, 600)).state is State.FAILED


def test_disruption_without_time_excuses_exit() -> None:
    assert worker(0, exit=ended(1), disruption=EVICTED).state is State.DISRUPTED
