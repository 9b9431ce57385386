"""The table of legal moves, and the message of one that is not in it."""

from typing import Any

import pytest

from tests.support.jobs import NOW, condition
from tests.support.phase_transitions import LEGAL, objection
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase, Restarts, TrainingJobStatus


def status(phase: Phase = Phase.RUNNING, **fields: Any) -> TrainingJobStatus:
    end = {Phase.COMPLETE: C.COMPLETE, Phase.FAILED: C.FAILED}.get(phase)
    ended: dict[str, Any] = {"conditions": [condition(end)], "completion_time": NOW} if end else {}
    return TrainingJobStatus().evolve(phase=phase, start_time=NOW).evolve(**ended, **fields)


def test_each_phase_has_its_row() -> None:
    assert set(LEGAL) == set(Phase)


@pytest.mark.parametrize("before", Phase)
@pytest.mark.parametrize("after", Phase)
def test_move_is_legal_if_in_the_table(before: Phase, after: Phase) -> None:
    legal = before is after or after in LEGAL[before]
    assert (objection(status(before), status(after)) is None) is legal


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({}, {"phase": Phase.RESTARTING, "attempt": 2}, None),
        ({}, {"phase": Phase.SUSPENDED, "attempt": 2}, None),
        ({}, {"attempt": 2}, "the attempt goes from 1 to 2 while the phase is Running"),
        ({}, {"phase": Phase.RESTARTING, "attempt": 3}, "the attempt goes from 1 to 3"),
        ({"attempt": 2}, {"attempt": 1}, "the attempt goes from 2 to 1"),
        ({"start_time": None}, {"attempt": 7, "launched_attempt": 6}, None),
        ({}, {"launched_attempt": 2}, "an attempt is launched before it is decided"),
        ({}, {"phase": Phase.FAILED}, "the phase Failed contradicts the conditions"),
    ],
)
def test_attempt_grows_by_one_on_group_restart(
    before: dict[str, Any], after: dict[str, Any], message: str | None
) -> None:
    assert objection(status(**before), status().evolve(**after)) == message


@pytest.mark.parametrize(
    ("attempt", "restarts", "legal"),
    [
        (2, Restarts(failures=1), True),
        (2, Restarts(disruptions=1), True),
        (2, Restarts(), True),
        (2, Restarts(failures=2), False),
        (2, Restarts(failures=1, resizes=1), False),
        (1, Restarts(failures=1), False),
    ],
)
def test_an_attempt_that_ends_is_counted_once(attempt: int, restarts: Restarts, *, legal: bool) -> None:
    after = status(Phase.RESTARTING, attempt=attempt, restarts=restarts)
    assert (objection(status(), after) is None) is legal


def test_a_finished_job_stays_as_it_ended() -> None:
    before = status(Phase.COMPLETE)
    other = [condition(C.COMPLETE, reason=Reason.WORKERS_SUCCEEDED)]
    assert objection(before, before.evolve(conditions=other)) == "a job that has finished moves on"
    assert objection(before, before.evolve(replicas=0)) is None
