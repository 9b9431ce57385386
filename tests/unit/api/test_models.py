"""The models: what is read, what is written, and what is passed over."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from trainyard.api.base import Time
from trainyard.api.spec import CleanPods, Framework, TrainingJobSpec
from trainyard.api.status import Condition, ConditionType as C, TrainingJobStatus

TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "main"}]}}


class Holder(BaseModel):
    at: Time


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05.999999Z", "2026-01-02T03:04:05Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 999, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))), "2026-01-02T01:04:05Z"),
    ],
)
def test_time_is_stored_as_utc_whole_seconds(given: object, written: str) -> None:
    held = Holder.model_validate({"at": given})
    assert held.model_dump(mode="json") == {"at": written}
    assert Holder.model_validate({"at": written}) == held


@pytest.mark.parametrize("given", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"])
def test_time_beyond_utc_range_is_rejected(given: str) -> None:
    with pytest.raises(ValidationError, match="of all time"):
        Holder.model_validate({"at": given})


def test_minimal_spec_gets_the_defaults() -> None:
    spec = TrainingJobSpec.model_validate({"template": TEMPLATE})
    assert (spec.framework, spec.replicas, spec.processes_per_replica) == (Framework.TORCH, 1, "auto")
    assert (spec.recovery.max_restarts, spec.managed_by) == (10, None)
    assert (spec.lifecycle.suspend, spec.lifecycle.clean_pods) == (False, CleanPods.RUNNING)
    assert spec.lifecycle.success is None
    assert spec.parallelism is None


def test_model_replica_size_multiplies_the_parallel_degrees() -> None:
    spec = TrainingJobSpec.model_validate({"template": TEMPLATE, "parallelism": {"tensor": 4, "context": 3}})
    assert spec.parallelism is not None
    assert (spec.parallelism.pipeline, spec.parallelism.ranks) == (1, 12)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": -1}, "replicas"),
        ({"framework": "torhc"}, "framework"),
        ({"recovery": {"maxRestarts": -1}}, "maxRestarts"),
        ({"lifecycle": {"cleanPods": "Some"}}, "cleanPods"),
        ({"managedBy": "nobody"}, "managedBy"),
        ({"parallelism": {"tensor": 0}}, "parallelism.tensor"),
        ({"parallelism": {"pipeline": -1}}, "parallelism.pipeline"),
        ({"parallelism": {"context": 1025}}, "parallelism.context"),
    ],
)
def test_error_names_the_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        TrainingJobSpec.model_validate({"template": TEMPLATE, **wrong})


def test_template_is_required() -> None:
    with pytest.raises(ValidationError, match="template"):
        TrainingJobSpec.model_validate({})


def test_fields_of_newer_versions_are_ignored() -> None:
    spec = TrainingJobSpec.model_validate({"template": TEMPLATE, "horoscope": {"minReplicas": 1}})
    assert "horoscope" not in spec.dump()
    assert TrainingJobStatus.model_validate({"weather": {"rain": 1}}) == TrainingJobStatus()


def test_status_is_written_without_what_is_not_set() -> None:
    written = TrainingJobStatus().dump()
    assert {"lastFailure", "startTime", "completionTime", "workers", "stragglers", "suspectNodes"}.isdisjoint(written)
    assert (written["attempt"], written["internal"]["launchedAttempt"], written["readyReplicas"]) == (1, 0, 0)


def test_last_failure_writes_uid_as_kubernetes_does() -> None:
    failure = {
        "time": "2026-01-02T03:04:05Z",
        "attempt": 1,
        "pod": "p",
        "podUID": "u",
        "reason": "Error",
        "message": "m",
    }
    assert TrainingJobStatus.model_validate({"lastFailure": failure}).dump()["lastFailure"] == failure


@pytest.mark.parametrize(("answer", "holds"), [("True", True), ("False", False), ("Unknown", False), (None, False)])
def test_condition_holds_only_where_it_is_true(answer: Any, *, holds: bool) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    reported = (
        [] if answer is None else [Condition(type=C.COMPLETE, status=answer, reason="R", last_transition_time=at)]
    )
    status = TrainingJobStatus().evolve(conditions=reported)
    assert (status.holds(C.COMPLETE), status.finished) == (holds, holds)
