"""Conditions: replaced where spoken of, kept where not, their times only moved by a new answer."""

from tests.support.jobs import NOW, ago, condition
from trainyard.api.reasons import Reason
from trainyard.api.status import Condition, ConditionType as C, TrainingJobStatus
from trainyard.domain.decisions import SetFalse, SetTrue
from trainyard.domain.status.transitions import MAX_MESSAGE_LENGTH, apply_conditions


def stored(*conditions: Condition) -> TrainingJobStatus:
    return TrainingJobStatus().evolve(conditions=list(conditions))


def test_first_condition_is_timed_now() -> None:
    (only,) = apply_conditions(stored(), [SetTrue(C.RUNNING, Reason.WORKERS_RUNNING, "all")], 3, NOW)
    assert (only.type, only.status, only.reason, only.message) == ("Running", "True", "WorkersRunning", "all")
    assert (only.last_transition_time, only.observed_generation) == (NOW, 3)


def test_same_status_keeps_time_and_updates_reason() -> None:
    before = condition(C.RUNNING, holds=False, since=ago(60))
    (only,) = apply_conditions(stored(before), [SetFalse(C.RUNNING, Reason.UNSCHEDULABLE, "no node")], 1, NOW)
    assert (only.reason, only.last_transition_time) == ("Unschedulable", ago(60))


def test_other_answer_moves_the_time() -> None:
    before = condition(C.RUNNING, holds=False, since=ago(60))
    (only,) = apply_conditions(stored(before), [SetTrue(C.RUNNING, Reason.WORKERS_RUNNING, "all")], 1, NOW)
    assert only.last_transition_time == NOW


def test_what_is_not_spoken_of_stays() -> None:
    before = condition(C.SCHEDULED, since=ago(60))
    assert before in apply_conditions(stored(before), [SetTrue(C.RUNNING, Reason.WORKERS_RUNNING, "all")], 1, NOW)


def test_unknown_condition_types_come_last() -> None:
    newer = condition(C.RUNNING).evolve(type="Degraded")
    before = stored(newer, condition(C.FAILED), condition(C.SCHEDULED))
    kinds = [c.type for c in apply_conditions(before, [SetTrue(C.RUNNING, Reason.WORKERS_RUNNING, "all")], 1, NOW)]
    assert kinds == ["Scheduled", "Running", "Failed", "Degraded"]


def test_message_is_cut_to_what_the_crd_allows() -> None:
    (only,) = apply_conditions(stored(), [SetTrue(C.FAILED, Reason.INVALID_TEMPLATE, "x" * 40_000)], 1, NOW)
    assert len(only.message) == MAX_MESSAGE_LENGTH
