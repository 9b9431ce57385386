"""What ended an attempt, and how it is reported."""

from datetime import timedelta

import pytest

from tests.support.jobs import NOW, Scene, ago, job
from trainyard.api.reasons import Reason
from trainyard.domain.recovery.root_cause import ROOT_CAUSE_WAIT, Cause, describe, find_cause, root_cause_wait_left
from trainyard.domain.state.termination import Exit, Kind

PEER = "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:123"
ALL = job(3).running()


@pytest.mark.parametrize(
    ("scene", "index", "reason"),
    [
        pytest.param(ALL.failed(1), 1, Reason.WORKER_FAILED, id="one fails"),
        pytest.param(
            ALL.failed(2, seconds_ago=9).failed(1, seconds_ago=8), 2, Reason.WORKER_FAILED, id="the first of two"
        ),
        pytest.param(ALL.failed(2).failed(1), 1, Reason.WORKER_FAILED, id="in the same second the lower index"),
        pytest.param(
            ALL.failed(0, seconds_ago=9, message=PEER, peer_lost=True).failed(1, seconds_ago=8),
            1,
            Reason.WORKER_FAILED,
            id="a victim that ended earlier is not the cause",
        ),
        pytest.param(
            ALL.failed(0, seconds_ago=9, message=PEER).failed(1, seconds_ago=8),
            0,
            Reason.WORKER_FAILED,
            id="text alone makes no victim",
        ),
        pytest.param(ALL.failed(0, message=PEER, peer_lost=True), 0, Reason.WORKER_FAILED, id="a victim alone is"),
        pytest.param(ALL.deleted(1), 1, Reason.WORKER_DISRUPTED, id="one is deleted"),
        pytest.param(
            ALL.failed(0, seconds_ago=5).disrupted(2, seconds_ago=5),
            2,
            Reason.WORKER_DISRUPTED,
            id="in the same second the disruption",
        ),
        pytest.param(
            ALL.failed(0, seconds_ago=6).disrupted(2, seconds_ago=5),
            0,
            Reason.WORKER_FAILED,
            id="a failure before the disruption",
        ),
        pytest.param(
            ALL.failed(0, seconds_ago=4).disrupted(2, seconds_ago=5),
            2,
            Reason.WORKER_DISRUPTED,
            id="a failure after it",
        ),
        pytest.param(ALL.rejected(1), 1, Reason.ADMISSION_REJECTED, id="refused by its node"),
        pytest.param(
            ALL.failed(0).rejected(1),
            1,
            Reason.ADMISSION_REJECTED,
            id="the others failed because the refused one is missing",
        ),
        pytest.param(ALL.gone(1), 1, Reason.WORKER_DISRUPTED, id="gone without a trace"),
        pytest.param(ALL.failed(0).gone(1), 1, Reason.WORKER_DISRUPTED, id="gone, and another failed"),
    ],
)
def test_first_trouble_is_the_cause(scene: Scene, index: int, reason: Reason) -> None:
    cause = find_cause(scene.pods, range(3))
    assert cause is not None
    assert (cause.index, cause.reason) == (index, reason)
    assert cause.counted is (reason is Reason.WORKER_FAILED)


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(ALL, id="all run"),
        pytest.param(ALL.succeeded(0), id="one has succeeded"),
        pytest.param(ALL.waiting(1, "ImagePullBackOff"), id="one waits"),
    ],
)
def test_no_trouble_no_cause(scene: Scene) -> None:
    assert find_cause(scene.pods, range(3)) is None


def test_missing_pod_of_incomplete_group_is_no_cause() -> None:
    assert find_cause(ALL.gone(1).pods, ()) is None


@pytest.mark.parametrize(
    ("message", "seconds_ago", "left"),
    [
        pytest.param(PEER, 0, ROOT_CAUSE_WAIT, id="a victim that ended just now"),
        pytest.param(PEER, 1, timedelta(seconds=2), id="a second ago"),
        pytest.param(PEER, 3, None, id="long enough ago"),
        pytest.param(PEER, 600, None, id="long ago"),
        pytest.param(PEER, -1, timedelta(seconds=2), id="by a clock a second ahead"),
        pytest.param(PEER, -600, None, id="by a clock ten minutes ahead"),
        pytest.param("ValueError: lr", 0, None, id="no victim"),
    ],
)
def test_only_a_victim_delays_the_decision(message: str, seconds_ago: float, left: timedelta | None) -> None:
    cause = find_cause(
        ALL.failed(1, seconds_ago=seconds_ago, message=message, peer_lost=message == PEER).pods, range(3)
    )
    assert cause is not None
    assert root_cause_wait_left(cause, NOW) == left


TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: lr must be positive\n'
)


@pytest.mark.parametrize(
    ("scene", "sentence"),
    [
        pytest.param(
            ALL.failed(1, exit_code=2, message=TRACEBACK),
            "worker 1 of attempt 1 (pod train-worker-1-1 on node1) failed with exit code 2 (Error):"
            " ValueError: lr must be positive (at train.py:3 in <module>)",
            id="an error with a traceback",
        ),
        pytest.param(
            ALL.failed(1, message="sentence\nlog\nmore", headline="sentence", location="a.py:1 in f", kind=Kind.FAILED),
            "worker 1 of attempt 1 (pod train-worker-1-1 on node1) failed with exit code 1 (Error):"
            " sentence (at a.py:1 in f)",
            id="by the agent's data",
        ),
        pytest.param(
            ALL.failed(1, exit_code=137, reason="OOMKilled"),
            "worker 1 of attempt 1 (pod train-worker-1-1 on node1) failed with exit code 137 (OOMKilled)",
            id="without a message",
        ),
        pytest.param(
            ALL.failed(1).pod(1, exit=Exit(ago(1), 4, "Error", "disk full", "fetch")),
            "worker 1 of attempt 1 (pod train-worker-1-1 on node1) failed with exit code 4 (Error)"
            " in init container fetch: disk full",
            id="an init container",
        ),
        pytest.param(
            ALL.disrupted(2),
            "worker 2 of attempt 1 (pod train-worker-2-1 on node2) was disrupted: PreemptionByScheduler:"
            " a pod of higher priority",
            id="a disruption",
        ),
        pytest.param(
            ALL.rejected(0),
            "worker 0 of attempt 1 (pod train-worker-0-1 on node9) was rejected by its node: UnexpectedAdmissionError:"
            " no device is healthy",
            id="a refusal",
        ),
        pytest.param(ALL.gone(2), "worker 2 of attempt 1: its pod is gone", id="gone"),
    ],
)
def test_cause_in_a_sentence(scene: Scene, sentence: str) -> None:
    cause = find_cause(scene.pods, range(3))
    assert isinstance(cause, Cause)
    assert describe(cause, 1) == sentence
