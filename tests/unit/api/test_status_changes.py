"""Changes of a status are typed: an unknown field or a wrong type fails at once."""

from typing import get_type_hints

import pytest
from pydantic import ValidationError

from tests.support.jobs import condition
from trainyard.api.internal_status import InternalStatus
from trainyard.api.job_conditions import SUMMARY_LENGTH, summary
from trainyard.api.status import (
    Condition,
    ConditionType as C,
    Phase,
    StatusChanges,
    TrainingJobStatus,
)


def test_changes_name_every_field() -> None:
    own = TrainingJobStatus.model_fields.keys() - {"internal"}
    assert not own & InternalStatus.model_fields.keys()
    assert get_type_hints(StatusChanges).keys() == own | InternalStatus.model_fields.keys()


def test_changes_reach_internal_fields() -> None:
    status = TrainingJobStatus(attempt=2).evolve(attempt=3, launched_attempt=2)
    assert (status.attempt, status.internal.launched_attempt) == (3, 2)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="TrainingJobStatus has no field atempt"):
        TrainingJobStatus().evolve(atempt=2)  # type: ignore[call-arg] # what mypy refuses, too
    with pytest.raises(TypeError, match="InternalStatus has no field atempt"):
        InternalStatus().evolve(atempt=2)


def test_a_wrong_type_is_refused() -> None:
    with pytest.raises(ValidationError):
        TrainingJobStatus().evolve(attempt="two")  # type: ignore[arg-type] # what mypy refuses, too


TABLE = [
    ([], (None, None)),
    ([condition(C.RUNNING, reason="WorkersRunning")], (None, None)),
    ([condition(C.RUNNING, holds=False, reason="Unschedulable")], ("Unschedulable", "stored earlier")),
    (
        [condition(C.RUNNING, holds=False, reason="JobFinished"), condition(C.FAILED, reason="NonRetryable")],
        ("NonRetryable", "stored earlier"),
    ),
    (
        [
            condition(C.RUNNING, holds=False, reason="WorkerFailed").evolve(message="no worker runs"),
            condition(C.RESTARTING, reason="WorkerFailed").evolve(message="worker 1 failed"),
        ],
        ("WorkerFailed", "worker 1 failed"),
    ),
    (
        [
            condition(C.RUNNING, holds=False, reason="Unschedulable").evolve(message="0/3 nodes are available"),
            condition(C.RESTARTING, reason="WorkerFailed"),
        ],
        ("Unschedulable", "0/3 nodes are available"),
    ),
    (
        [condition(C.RUNNING, reason="WorkersRunning"), condition(C.RESIZING, reason="WorkersJoining")],
        ("WorkersJoining", "stored earlier"),
    ),
]


@pytest.mark.parametrize(("conditions", "expected"), TABLE)
def test_summary_shows_what_people_ask_first(
    conditions: list[Condition], expected: tuple[str | None, str | None]
) -> None:
    assert summary(conditions) == expected
    status = TrainingJobStatus().evolve(conditions=conditions, phase=Phase.PENDING)
    assert (status.reason, status.message) == expected


def test_summary_fits_the_printed_table() -> None:
    long = condition(C.FAILED, reason="NonRetryable").evolve(message="the first line,\nthen " + "word " * 60)
    _, message = summary([long])
    assert message is not None
    assert message.startswith("the first line, then word")
    assert message.endswith("word…")
    assert len(message) <= SUMMARY_LENGTH


def test_one_long_word_is_cut_in_itself() -> None:
    _, message = summary([condition(C.FAILED, reason="NonRetryable").evolve(message="x" * 300)])
    assert message == "x" * (SUMMARY_LENGTH - 1) + "…"


def test_summary_of_long_names_has_the_cause() -> None:
    pod, node = "j" * 63 + "-worker-12-11", "ip-10-120-112-134.eu-central-1.compute.internal"
    text = f"worker 12 of attempt 11 (pod {pod} on {node}) failed with exit code 1 (Error): KeyError: 'x'; the job failed: too often"
    _, message = summary([condition(C.FAILED, reason="RestartsExhausted").evolve(message=text)])
    assert (
        message == "worker 12 of attempt 11 failed with exit code 1 (Error): KeyError: 'x'; the job failed: too often"
    )
