"""Conditions: replaced where spoken of, kept where not, their times only moved by a new answer."""

from tests.support.jobs import NOW, ago, condition
from trainyard.api.reasons import Reason
from trainyard.api.status import Condition, ConditionType as C, TrainingJobStatus
from trainyard.domain.conditions import LONGEST_MESSAGE, no, said, yes


def stored(*conditions: Condition) -> TrainingJobStatus:
    return TrainingJobStatus().evolve(conditions=list(conditions))


def test_first_saying_is_timed_now() -> None:
    (only,) = said(stored(), [yes(C.RUNNING, Reason.WORKERS_RUNNING, "all")], 3, NOW)
    assert (only.type, only.status, only.reason, only.message) == ("Running", "True", "WorkersRunning", "all")
    assert (only.last_transition_time, only.observed_generation) == (NOW, 3)


def test_same_answer_keeps_its_time_and_takes_the_new_reason() -> None:
    before = condition(C.RUNNING, holds=False, since=ago(60))
    (only,) = said(stored(before), [no(C.RUNNING, Reason.UNSCHEDULABLE, "no node")], 1, NOW)
    assert (only.reason, only.last_transition_time) == ("Unschedulable", ago(60))


def test_other_answer_moves_the_time() -> None:
    before = condition(C.RUNNING, holds=False, since=ago(60))
    (only,) = said(stored(before), [yes(C.RUNNING, Reason.WORKERS_RUNNING, "all")], 1, NOW)
    assert only.last_transition_time == NOW


def test_what_is_not_spoken_of_stays() -> None:
    before = condition(C.SCHEDULED, since=ago(60))
    assert before in said(stored(before), [yes(C.RUNNING, Reason.WORKERS_RUNNING, "all")], 1, NOW)


def test_order_is_always_the_same_and_unknown_types_come_last() -> None:
    newer = condition(C.RUNNING).evolve(type="Degraded")
    before = stored(newer, condition(C.FAILED), condition(C.SCHEDULED))
    kinds = [c.type for c in said(before, [yes(C.RUNNING, Reason.WORKERS_RUNNING, "all")], 1, NOW)]
    assert kinds == ["Scheduled", "Running", "Failed", "Degraded"]


def test_message_is_cut_to_what_the_crd_allows() -> None:
    (only,) = said(stored(), [yes(C.FAILED, Reason.INVALID_TEMPLATE, "x" * 40_000)], 1, NOW)
    assert len(only.message) == LONGEST_MESSAGE
