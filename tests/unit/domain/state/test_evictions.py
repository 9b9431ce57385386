"""Pods that their kubelet ends: which of them have it coming, and what that costs."""

import pytest

from tests.support.jobs import NOW, job
from tests.unit.domain.observing import AT, SOME_TIME, Json, condition, containers, ended, pod
from trainyard.api.internal_status import Backoff
from trainyard.domain.plan import plan
from trainyard.domain.recovery.root_cause import describe, find_cause
from trainyard.domain.state.observe import pod_view
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import State

FULL = 'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi".'
PRESSURE = condition("DisruptionTarget", reason="TerminationByKubelet", message="The node was low on resource: memory.")
OVER = condition("Ready", "False", reason="PodFailed")


def evicted(main: Json, *conditions: Json, reason: str = "Evicted", message: str = FULL) -> Json:
    status = {"phase": "Failed", "reason": reason, "message": f"{message} ", "conditions": [OVER, *conditions]}
    return pod({**status, "containerStatuses": containers(main)})


@pytest.mark.parametrize(
    ("raw", "end"),
    [
        pytest.param(evicted(ended(143)), Exit(AT, 143, "Evicted", FULL), id="ended by the signal"),
        pytest.param(
            evicted(
                ended(
                    137,
                    message='{"trainyard":1,"kind":"failed","rank":2,"exitCode":137,"signal":9,"step":7,"peerLost":true}',
                )
            ),
            Exit(AT, 137, "Evicted", FULL, step=7, rank=2),
            id="its agent could still report the step",
        ),
        pytest.param(evicted(ended(0, "Completed")), Exit(AT, 137, "Evicted", FULL), id="that is no success"),
        pytest.param(evicted(ended(90)), Exit(AT, 137, "Evicted", FULL), id="nor free, though it saved its work"),
        pytest.param(
            evicted({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}),
            Exit(AT, 137, "Evicted", FULL),
            id="its container was lost on the way",
        ),
    ],
)
def test_a_pod_that_fills_its_disk_has_failed(raw: Json, end: Exit) -> None:
    seen = pod_view(raw)
    assert (seen.exit, seen.disruption, seen.state) == (end, None, State.FAILED)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(evicted(ended(137), PRESSURE), id="the node was short of memory"),
        pytest.param(evicted(ended(137), reason="Terminated"), id="the node shut down"),
        pytest.param(evicted(ended(137), reason="NodeShutdown"), id="it did, in an older version"),
        pytest.param(evicted(ended(137), reason="Shutdown"), id="and in one before"),
        pytest.param(evicted(ended(137), reason="Preempting"), id="a critical pod needed the node"),
        pytest.param(evicted(ended(137), reason="NodeLost"), id="the node was lost"),
        *(
            pytest.param(pod({"phase": "Failed", "reason": reason, "message": "no"}), id=f"refused: {reason}")
            for reason in ("Evicted", "NodeAffinity", "OutOfcpu", "UnexpectedAdmissionError", "TopologyAffinityError")
        ),
    ],
)
def test_what_is_nobodys_fault(raw: Json) -> None:
    assert pod_view(raw).state is State.DISRUPTED


@pytest.mark.parametrize(
    ("deletion", "expected"), [("2026-01-02T12:00:31Z", State.FAILED), ("2026-01-02T12:00:29Z", State.DISRUPTED)]
)
def test_later_deletion_does_not_excuse_eviction(deletion: str, expected: State) -> None:
    raw = evicted(ended(137))
    raw["metadata"] |= {"deletionTimestamp": deletion, "deletionGracePeriodSeconds": 30}
    assert pod_view(raw).state is expected


def test_eviction_counts_and_backs_off() -> None:
    seen = pod_view(evicted(ended(143, finishedAt=SOME_TIME)))
    scene = job(3).running().with_status(backoff=Backoff(count=2)).pod(1, phase="Failed", exit=seen.exit, ended=True)
    cause = find_cause(scene.pods, range(3))
    assert cause is not None
    assert describe(cause, 1).endswith(f"failed with exit code 143 (Evicted): {FULL}")
    status = plan(scene.snapshot, NOW).status
    assert (status.restarts.failures, status.restarts.disruptions, status.internal.backoff.count) == (1, 0, 3)
    assert status.internal.backoff.not_before is not None
    assert (status.internal.backoff.not_before - NOW).total_seconds() == 4
    assert status.last_failure is not None
    assert (status.last_failure.reason, status.last_failure.message) == ("Evicted", FULL)


def test_pod_that_was_not_admitted_has_no_exit() -> None:
    raw = pod({"phase": "Failed", "reason": "Evicted", "message": FULL, "conditions": [OVER]})
    assert pod_view(raw).exit is None
