"""The cached record of a TrainingJob."""

import sys
from typing import Any

import pytest

from tests.support.jobs import NOW
from tests.unit.controller.raw_job import RAW
from trainyard.api.status import Condition, ConditionType, Phase, TrainingJobStatus
from trainyard.controller.reconcile.resources import MAX_SPEC_BYTES, job_record


def test_stored_status_equals_the_watched_record() -> None:
    status = TrainingJobStatus().evolve(attempt=3, phase=Phase.RUNNING)
    brought = {**RAW, "metadata": {**RAW["metadata"], "resourceVersion": "9"}, "status": status.dump()}
    assert job_record(RAW).with_status(status, 9) == job_record(brought)


def test_stored_status_repairs_an_unreadable_record() -> None:
    broken = job_record({**RAW, "status": {"attempt": "many"}})
    assert broken.problem
    assert broken.view is None
    healed = broken.with_status(TrainingJobStatus(), 8)
    assert (healed.problem, healed.resource_version) == ("", 8)
    assert healed.view is not None


def test_labels_of_kueue_and_short_parameters_are_kept() -> None:
    parameter = "provreq.kueue.x-k8s.io/"
    labels = {"kueue.x-k8s.io/queue-name": "team", "other": "x"}
    annotations = {f"{parameter}a": "1", f"{parameter}b": "b" * 257, "other": "x"}
    record = job_record({**RAW, "metadata": {**RAW["metadata"], "labels": labels, "annotations": annotations}})
    assert record.view is not None
    assert record.view.queue is not None
    assert (record.view.queue.queue, record.view.queue.annotations) == ("team", {f"{parameter}a": "1"})
    assert b"other" not in record.text
    plain = job_record(RAW).view
    assert plain is not None
    assert plain.queue is None


def test_too_large_spec_is_refused_and_not_kept() -> None:
    """One tenant's huge templates must not fill the operator's memory."""
    record = job_record({**RAW, "spec": {**RAW["spec"], "managedBy": "example.com/x", "more": "a" * MAX_SPEC_BYTES}})
    for each in (record, record.with_status(TrainingJobStatus(attempt=2), 9)):
        assert "KiB exceed the limit of 256 KiB" in each.problem
        assert each.managed_elsewhere
        assert each.view is None
        assert len(each.text) < 1000


def test_spec_within_the_limit_is_read() -> None:
    command = ["sh", "-c", "a" * (MAX_SPEC_BYTES - 4096)]
    containers = [{**RAW["spec"]["template"]["spec"]["containers"][0], "command": command}]
    record = job_record({**RAW, "spec": {**RAW["spec"], "template": {"spec": {"containers": containers}}}})
    assert not record.problem


def test_record_keeps_no_spare_memory() -> None:
    assert sys.getsizeof(job_record(RAW).text) < 500


def test_job_is_parsed_once_for_all_its_agents() -> None:
    """Thousands of agents ask in the same moment when all jobs restart."""
    record = job_record(RAW)
    assert record.view is record.view
    stored = record.with_status(TrainingJobStatus(attempt=7), 99)
    assert stored.view is not None
    assert (stored.view.status.attempt, stored.view.resource_version) == (7, 99)


def test_request_for_stacks_is_kept_of_all_annotations() -> None:
    annotations = {"trainyard.dev/dump-stacks": "m" * 200, "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    raw = {**RAW, "metadata": {**RAW["metadata"], "annotations": annotations}}
    record = job_record(raw)
    assert b"last-applied" not in record.text
    view = record.with_status(TrainingJobStatus(attempt=2), 9).view
    assert view is not None
    assert (view.stack_request, view.status.attempt) == ("m" * 128, 2)


def test_annotation_of_another_kind_is_no_request() -> None:
    raw = {**RAW, "metadata": {**RAW["metadata"], "annotations": {"trainyard.dev/dump-stacks": ""}}}
    view = job_record(raw).view
    assert view is not None
    assert view.stack_request == ""


CONTAINER = {"name": "main", "image": "i" * 1000, "args": ["a" * 100_000], "env": [{"name": "A", "value": "b" * 1000}]}
LARGE = {
    "replicas": 3,
    "lifecycle": {"ttlSecondsAfterFinished": 60},
    "template": {"spec": {"containers": [CONTAINER]}},
}


def ended(kind: ConditionType, *, status: str = "True") -> TrainingJobStatus:
    condition = Condition(type=kind, status=status, reason="Because", message="", last_transition_time=NOW)
    return TrainingJobStatus(conditions=[condition])


@pytest.mark.parametrize("kind", [ConditionType.COMPLETE, ConditionType.FAILED])
def test_finished_job_is_kept_without_its_template(kind: ConditionType) -> None:
    """A tenant's finished jobs stay for ever, and no quota of pods counts them."""
    running = job_record({**RAW, "spec": LARGE})
    assert len(running.text) > 100_000
    for record in (
        running.with_status(ended(kind), 9),
        job_record({**RAW, "spec": LARGE, "status": ended(kind).dump()}),
    ):
        assert len(record.text) < 1000
        assert not record.problem
        assert record.view is not None
        assert (record.view.spec.replicas, record.view.spec.lifecycle.ttl_seconds_after_finished) == (3, 60)
        assert record.with_status(TrainingJobStatus(), 10) is record, "the watch brings the whole object"


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Complete"},
        {"phase": "Failed", **ended(ConditionType.FAILED, status="False").dump()},
        {**ended(ConditionType.COMPLETE).dump(), "attempt": "many"},
    ],
    ids=["phase alone", "condition is false", "unreadable"],
)
def test_unfinished_job_keeps_its_template(status: dict[str, Any]) -> None:
    """It may create pods again: a status can be written by hand."""
    record = job_record({**RAW, "spec": LARGE, "status": status})
    assert len(record.text) > 100_000
    healed = record.with_status(TrainingJobStatus(), 9).view
    assert healed is not None
    assert healed.spec.template["spec"]["containers"][0]["args"] == CONTAINER["args"]
