"""Progress between failures: it forgives those before, and where there is none the job fails."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, job, stored
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, TrainingJobStatus
from trainyard.domain.plan import plan


def after(*steps: int | None, **recovery: Any) -> tuple[TrainingJobStatus, str]:
    """The status when attempts have failed after these steps, one after the other, and the last message."""
    scene, note = job(3, recovery={"maxRestarts": 4, **recovery}), ""
    for number, step in enumerate(steps):
        now = NOW + timedelta(hours=number)
        running = scene.running(attempt=scene.status.attempt)
        made = plan(running.failed(1, step=step).snapshot, now)
        assert made.status == stored(made.status)
        scene, note = Scene(scene.spec, made.status), made.events[0].note
    return scene.status, note


def failed_for(status: TrainingJobStatus) -> str | None:
    failed = status.condition(C.FAILED)
    return failed.reason if failed else None


@pytest.mark.parametrize(
    ("steps", "recovery", "reason"),
    [
        pytest.param([120, 120, 120], {}, Reason.NO_PROGRESS, id="three times at the same step"),
        pytest.param([0, 0, 0], {}, Reason.NO_PROGRESS, id="at the first"),
        pytest.param([120, 120], {}, None, id="twice"),
        pytest.param([120, 120], {"noProgressLimit": 2}, Reason.NO_PROGRESS, id="twice, where that is too often"),
        pytest.param([120, 119, 120, 120], {}, None, id="with another between"),
        pytest.param([120, None, 120, 120], {}, None, id="with one between of which nothing is known"),
        pytest.param([None] * 4, {}, None, id="nothing is known"),
        pytest.param([None] * 5, {}, Reason.RESTARTS_EXHAUSTED, id="nothing is known, once too often"),
        pytest.param([5, 4, 3, 2, 1], {}, Reason.RESTARTS_EXHAUSTED, id="never further than the first"),
        pytest.param([1, 2, 3, 4, 5, 6, 7, 8], {}, None, id="each time further"),
        pytest.param([1, 2, 3, 4, 5, 6, 7, 8], {"windowSeconds": 86400}, None, id="each time further, within a window"),
        pytest.param([9, 5, 6, 7, 10, 5, 6, 7], {}, None, id="further in the middle"),
        pytest.param([9, 5, 6, 7, 10, 5, 6, 7, 8], {}, Reason.RESTARTS_EXHAUSTED, id="further, and then not for long"),
        pytest.param([7], {"maxRestarts": 0}, Reason.RESTARTS_EXHAUSTED, id="none is allowed"),
    ],
)
def test_what_a_row_of_failures_leads_to(steps: list[int | None], recovery: dict[str, Any], reason: str | None) -> None:
    status, _ = after(*steps, **recovery)
    assert failed_for(status) == reason
    assert status.restarts.failures == len(steps)


def test_failure_message_names_the_step() -> None:
    status, note = after(120, 120, 120)
    assert "; the job failed: the last 3 failures happened after step 120 (recovery.noProgressLimit is 3). Fix" in note
    assert status.last_failure is not None
    assert status.last_failure.step == 120


def test_those_before_progress_are_forgiven_and_stay_counted() -> None:
    status, note = after(5, 4, 4, 6)
    assert (
        status.restarts.failures,
        status.internal.restart_budget.forgiven,
        status.internal.restart_budget.furthest_step,
    ) == (4, 3, 6)
    assert "(1 of 4 restarts used; 3 earlier failures no longer count)" in note


@pytest.mark.parametrize("how", [{"replicas": 2}, {"lifecycle": {"suspend": True}}])
def test_changed_job_restarts_the_step_count(how: dict[str, Any]) -> None:
    status, _ = after(120, 120)
    assert status.internal.restart_budget.at_same_step == 2
    changed = Scene(job(3).spec, status).running(attempt=status.attempt).with_spec(**how)
    assert plan(changed.snapshot, NOW).status.internal.restart_budget.at_same_step is None


def test_edited_status_forgives_no_extra_failures() -> None:
    status, _ = after(5, 4)
    odd = status.internal.restart_budget.evolve(forgiven=100)
    scene = Scene(job(3, recovery={"maxRestarts": 1}).spec, status.evolve(restart_budget=odd))
    made = plan(scene.running(attempt=status.attempt).failed(1, step=3).snapshot, NOW)
    assert "(0 of 1 restarts used" in made.events[0].note
