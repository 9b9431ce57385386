"""What happens where `parallelism` does not divide the ranks of a group into whole copies of the model."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, ago, because, job, stored, summarize
from trainyard.api.reasons import Reason
from trainyard.api.spec import RANKS_FIT
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.decisions import CreateService, CreateWorker, DeletePod, Plan
from trainyard.domain.plan import plan
from trainyard.domain.scaling.group_size import indivisible


def asking(limits: dict[str, Any]) -> dict[str, Any]:
    """A template whose main container has these limits."""
    return {"spec": {"containers": [{"name": "main", "image": "trainer:1", "resources": {"limits": limits}}]}}


@pytest.mark.parametrize(
    ("replicas", "fields", "fits"),
    [
        (3, {}, True),
        (3, {"parallelism": {}}, True),
        (4, {"parallelism": {"tensor": 2}}, True),
        (3, {"parallelism": {"tensor": 2}}, False),
        (3, {"parallelism": {"pipeline": 2}}, False),
        (3, {"parallelism": {"context": 2}}, False),
        (12, {"parallelism": {"tensor": 3, "pipeline": 2, "context": 2}}, True),
        (18, {"parallelism": {"tensor": 3, "pipeline": 2, "context": 2}}, False),
        (1, {"parallelism": {"tensor": 2}}, False),
        (1, {"parallelism": {"tensor": 2}, "processesPerReplica": 2}, True),
        (3, {"parallelism": {"tensor": 8, "pipeline": 3}, "template": asking({"nvidia.com/gpu": 8})}, True),
        (4, {"parallelism": {"tensor": 8, "pipeline": 3}, "template": asking({"nvidia.com/gpu": 8})}, False),
    ],
)
def test_ranks_divide_into_model_copies(replicas: int, fields: dict[str, Any], *, fits: bool) -> None:
    assert (indivisible(job(replicas, **fields).job, replicas) == "") is fits


def test_message_contains_the_numbers() -> None:
    wrong = job(3, parallelism={"tensor": 4, "pipeline": 2}, processesPerReplica=5)
    assert indivisible(wrong.job, 3) == f"{RANKS_FIT}: 3 x 5 is 15, and 4 x 2 x 1 is 8"


PAIRS = {"parallelism": {"tensor": 2}}


def decided(scene: Scene) -> Plan:
    return plan(scene.snapshot, NOW)


def reported_once(scene: Scene, message: str) -> None:
    """The condition and one event report it; the next reconcile changes nothing."""
    first = decided(scene)
    stalled = first.status.condition(C.STALLED)
    assert stalled is not None
    assert (stalled.status, stalled.reason, stalled.message) == ("True", Reason.INVALID_SPEC, message)
    assert [(e.type, e.reason, e.note) for e in first.events] == [("Warning", Reason.INVALID_SPEC, message)]
    again = decided(replace(scene, status=stored(first.status)))
    assert (again.status, list(again.events)) == (first.status, [])


def test_indivisible_size_creates_no_worker() -> None:
    scene = job(3, **PAIRS)
    first = decided(scene)
    assert list(first.actions) == []
    assert first.status.phase is Phase.PENDING
    assert summarize(first.status.conditions)[C.RUNNING] == because(Reason.INVALID_SPEC, holds=False)
    reported_once(scene, f"{RANKS_FIT}: 3 x 1 is 3, and 2 x 1 x 1 is 2; no worker is started")


def test_job_starts_once_size_is_divisible() -> None:
    stalled = decided(job(3, **PAIRS))
    corrected = replace(job(3, **PAIRS), status=stored(stalled.status)).with_spec(replicas=4)
    begun = decided(corrected)
    assert list(begun.actions) == [CreateService(), *(CreateWorker(index, 1, 4) for index in range(4))]
    assert summarize(begun.status.conditions)[C.STALLED][0] is False


def test_startup_deadline_applies_to_indivisible_size() -> None:
    scene = job(3, **PAIRS, lifecycle={"startupDeadlineSeconds": 60})
    begun = replace(scene, status=stored(decided(scene).status))
    assert decided(begun).requeue_after == 60.0
    failed = decided(begun.with_status(attempt_start_time=ago(60))).status.condition(C.FAILED)
    assert failed is not None
    assert failed.reason == Reason.STARTUP_DEADLINE_EXCEEDED
    assert RANKS_FIT in failed.message


class TestAGroupThatIsThere:
    scaled = job(4, **PAIRS).running().with_spec(replicas=5)

    def test_goes_on(self) -> None:
        went_on = decided(self.scaled)
        assert (list(went_on.actions), went_on.status.attempt, went_on.status.phase) == ([], 1, Phase.RUNNING)
        assert (went_on.status.ready, summarize(went_on.status.conditions)[C.RUNNING][0]) == ("4/4", True)
        reported_once(
            self.scaled, f"{RANKS_FIT}: 5 x 1 is 5, and 2 x 1 x 1 is 2; until then the group keeps its 4 workers"
        )

    def test_is_recovered_at_its_size(self) -> None:
        lost = decided(self.scaled.failed(1))
        assert (lost.status.attempt, lost.status.restarts.failures, lost.status.restarts.resizes) == (2, 1, 0)

    def test_is_not_resized(self) -> None:
        gone = self.scaled.started(attempt=2)
        assert list(decided(replace(gone, pods=())).actions) == []
        assert {type(action) for action in decided(gone).actions} == {DeletePod}

    def test_missing_workers_are_created(self) -> None:
        half = job(4, **PAIRS).started().with_spec(replicas=5)
        half = replace(half, pods=job(4).created().pods[:2], has_service=True)
        assert list(decided(half).actions) == [CreateWorker(2, 1, 4), CreateWorker(3, 1, 4)]

    def test_follows_a_size_that_fits(self) -> None:
        stalled = replace(self.scaled, status=stored(decided(self.scaled).status))
        back = decided(stalled.with_spec(replicas=4)).status
        assert (back.attempt, summarize(back.conditions)[C.STALLED][0]) == (1, False)
        resized = decided(stalled.with_spec(replicas=6)).status
        assert (resized.attempt, resized.restarts.resizes) == (2, 1)

    def test_may_complete_and_be_suspended(self) -> None:
        assert decided(self.scaled.succeeded(0, 1, 2, 3)).status.phase is Phase.COMPLETE
        paused = self.scaled.with_spec(lifecycle={"suspend": True})
        assert decided(paused).status.phase is Phase.SUSPENDED
