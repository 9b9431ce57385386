"""Goodput: how a job's active time is accounted for, by the steps that agents report."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from tests.support.jobs import NOW, job, stored
from trainyard.api.base import MAX_JSON_INTEGER
from trainyard.api.progress import Goodput, LostSeconds
from trainyard.api.status import LastFailure, TrainingJobStatus
from trainyard.domain.progress.goodput import at_end, reported
from trainyard.domain.progress.group_progress import progress
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import RankProgress, WorkerReport

NEW = TrainingJobStatus().evolve(active_since=NOW)


def after(active: float) -> datetime:
    """The time when the job had been active for so many seconds."""
    return NOW + timedelta(seconds=active)


def after_report(
    status: TrainingJobStatus,
    step: int | None,
    *,
    active: float,
    first: int | None = None,
    took: float | None = 1.0,
    preflight: float = 0.0,
) -> TrainingJobStatus:
    """The status after a report, when the job had been active for so many seconds. A step takes one second by default."""
    rank = RankProgress(0, step, "train", step_seconds=took, first=first)
    report = WorkerReport(status.attempt, 0, (rank,), preflight_seconds=preflight)
    snapshot = Snapshot(replace(job(1).job, status=status), reports=[report])
    seen = progress(snapshot, NOW)
    goodput = reported(snapshot, seen, after(active))
    return stored(status.evolve(progress=seen, goodput=goodput))


def ended(status: TrainingJobStatus, *, active: float, failed_at: int | None = None) -> TrainingJobStatus:
    """The status with the next attempt, after a failure that reported its step, or a restart that reported none."""
    failure = LastFailure(time=NOW, attempt=status.attempt, pod="w", pod_uid="u", reason="Error", step=failed_at)
    return stored(
        status.evolve(
            attempt=status.attempt + 1,
            goodput=at_end(status, after(active), restarts=True),
            last_failure=status.last_failure if failed_at is None else failure,
        )
    )


def parts(status: TrainingJobStatus) -> tuple[float, ...]:
    """Productive, startup, recovery, repeated, other."""
    assert status.goodput is not None
    lost = status.goodput.lost_seconds
    return status.goodput.productive_seconds, lost.startup, lost.recovery, lost.repeated, lost.other


# Ten steps were done when the first report came, after 20 seconds without one.
TRAINS = after_report(NEW, 10, first=1, active=30)


def test_no_goodput_without_reported_steps() -> None:
    assert after_report(NEW, None, active=30).goodput is None
    assert at_end(NEW, after(30)) is None
    assert at_end(NEW, after(30), restarts=True) is None


def test_until_the_first_step_it_is_startup() -> None:
    assert parts(TRAINS) == (10, 20, 0, 0, 0)
    assert TRAINS.goodput is not None
    assert (TRAINS.goodput.ratio, TRAINS.goodput.accounted_seconds) == (0.3333, 30)
    assert parts(after_report(ended(NEW, active=40), 10, first=1, active=70)) == (10, 60, 0, 0, 0), (
        "with all its attempts"
    )


def test_comparison_of_nodes_has_its_own_loss() -> None:
    trains = after_report(NEW, 10, first=1, active=30, preflight=8)
    assert parts(trains) == (10, 12, 0, 0, 0)
    later = after_report(trains, 20, first=1, active=41, preflight=8)
    again = after_report(ended(later, active=41), 21, first=21, active=60, preflight=7)
    assert parts(again) == (21, 12, 11, 0, 1)
    assert again.goodput is not None
    assert again.goodput.lost_seconds.preflight == 15


def test_comparison_takes_no_longer_than_the_start() -> None:
    status = after_report(NEW, 10, first=1, active=30, preflight=1e9)
    assert parts(status) == (10, 0, 0, 0, 0)
    assert status.goodput is not None
    assert (status.goodput.lost_seconds.preflight, status.goodput.ratio) == (20, 0.3333)


def test_steps_of_an_earlier_job_do_not_count() -> None:
    assert parts(after_report(NEW, 5010, first=5001, active=30)) == (10, 20, 0, 0, 0)


def test_what_steps_do_not_take_is_other() -> None:
    assert parts(after_report(TRAINS, 40, first=1, active=70)) == (40, 20, 0, 0, 10)


def test_repeated_report_changes_nothing() -> None:
    assert after_report(TRAINS, 10, first=1, active=90) == TRAINS


def test_failure_counts_repeated_and_unreported_steps() -> None:
    # Step 15 was the last of the attempt; the checkpoint is of step 5, and the first step of the next was done at 51.
    again = after_report(ended(TRAINS, active=40, failed_at=15), 8, first=6, active=53)
    assert parts(again) == (15, 20, 15, 3, 0)
    beyond = after_report(again, 20, first=6, active=65)
    assert parts(beyond) == (20, 20, 15, 10, 0)


def test_disruption_counts_unreported_steps_later() -> None:
    """Five steps were done beyond the tenth; the checkpoint is of the fourteenth."""
    again = after_report(ended(TRAINS, active=35), 20, first=15, active=56)
    assert parts(again) == (20, 20, 16, 0, 0)


def test_attempt_without_steps_is_lost() -> None:
    status = ended(ended(TRAINS, active=40), active=100)
    assert parts(status) == (10, 20, 70, 0, 0)
    assert parts(after_report(status, 8, first=6, active=113)) == (10, 20, 80, 3, 0)


def test_restart_from_zero_repeats_all_steps() -> None:
    again = after_report(ended(TRAINS, active=30), 10, first=1, active=50)
    assert parts(again) == (10, 20, 10, 10, 0)
    assert parts(after_report(again, 15, first=1, active=55)) == (15, 20, 10, 10, 0)


def test_step_counter_going_back_repeats_steps() -> None:
    back = after_report(TRAINS, 2, first=1, active=40)
    assert parts(back) == (10, 20, 0, 0, 10)
    assert parts(after_report(back, 12, first=1, active=50)) == (12, 20, 0, 8, 10)


def test_first_step_is_unknown_without_library() -> None:
    first = after_report(NEW, 10, active=30)
    assert parts(first) == (0, 30, 0, 0, 0)
    assert parts(after_report(first, 20, active=40)) == (10, 30, 0, 0, 0)
    assert parts(after_report(ended(first, active=30), 15, active=45)) == (5, 30, 10, 0, 0)
    assert parts(after_report(ended(first, active=30), 5, active=45)) == (0, 30, 15, 0, 0)


def test_steps_before_known_duration_count_later() -> None:
    early = after_report(NEW, 2, first=1, active=22, took=None)
    assert early.goodput is not None
    assert (early.goodput.ratio, early.goodput.accounted_seconds) == (None, 0)
    assert after_report(early, 8, first=1, active=28, took=0.0).goodput == early.goodput
    assert parts(after_report(early, 10, first=1, active=30)) == (10, 20, 0, 0, 0)


def test_new_attempt_uses_previous_step_duration() -> None:
    assert parts(after_report(ended(TRAINS, active=30), 12, first=11, active=40, took=None)) == (12, 20, 8, 0, 0)


def test_suspension_is_excluded_and_followed_by_recovery() -> None:
    status = TRAINS.evolve(goodput=at_end(TRAINS, after(33)))
    assert parts(status) == (10, 20, 0, 0, 3)
    assert parts(after_report(ended(status, active=33), 15, first=11, active=43)) == (15, 20, 5, 0, 3)


def test_resize_changes_step_duration_alone() -> None:
    assert parts(after_report(ended(TRAINS, active=30), 30, first=11, active=45, took=0.5)) == (20, 20, 5, 0, 0)


def test_accounting_started_late_ignores_earlier_time() -> None:
    middle = after_report(TRAINS.evolve(goodput=None), 500, first=1, active=900)
    assert parts(middle) == (0, 0, 0, 0, 0)
    assert middle.goodput is not None
    assert middle.goodput.ratio is None
    assert parts(after_report(middle, 505, first=1, active=910)) == (5, 0, 0, 0, 5)


def test_lost_status_restarts_accounting() -> None:
    assert parts(after_report(NEW, 500, first=1, active=5)) == (5, 0, 0, 0, 0)


def test_impossible_step_is_bounded_by_time() -> None:
    assert parts(after_report(TRAINS, MAX_JSON_INTEGER, first=1, active=40, took=1e100)) == (20, 20, 0, 0, 0)
    assert parts(after_report(ended(TRAINS, active=30), MAX_JSON_INTEGER, first=MAX_JSON_INTEGER + 1, active=40)) == (
        20,
        20,
        0,
        0,
        0,
    )


@pytest.mark.parametrize("active", [20, 29.9, 30])
def test_clock_set_back_slightly_waits(active: float) -> None:
    assert after_report(TRAINS, 12, first=1, active=active).goodput == TRAINS.goodput
    assert parts(after_report(TRAINS, 20, first=1, active=40)) == (20, 20, 0, 0, 0)


def test_step_in_last_second_counts_once() -> None:
    assert at_end(TRAINS, after(29.5)) == TRAINS.goodput


def test_clock_set_back_far_restarts_accounting() -> None:
    before = after_report(TRAINS, 1000, first=1, active=1020)
    back = after_report(before, 1010, first=1, active=20)
    assert parts(back) == (1000, 20, 0, 0, 0)
    assert parts(after_report(back, 1020, first=1, active=30)) == (1010, 20, 0, 0, 0)


def test_any_edited_status_can_be_stored() -> None:
    all_of_it = float(MAX_JSON_INTEGER)
    lost = LostSeconds(startup=all_of_it, recovery=all_of_it, repeated=all_of_it, other=all_of_it)
    by_hand = Goodput(
        ratio=0.0,
        productive_seconds=all_of_it,
        lost_seconds=lost,
        accounted_seconds=all_of_it,
        furthest_step=MAX_JSON_INTEGER,
        attempt=7,
        step=MAX_JSON_INTEGER,
    )
    status = TRAINS.evolve(goodput=by_hand)
    corrected = after_report(status, 20, first=1, active=40)
    assert corrected.goodput is not None
    assert (corrected.goodput.accounted_seconds, corrected.goodput.ratio) == (40, 0.2)
    assert ended(corrected, active=50).goodput == corrected.goodput
    over = status.evolve(goodput=at_end(status, after(50)))
    assert stored(over) == over


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["reported", "ended", "failed", "at_end"]),
        st.integers(0, 200),
        st.floats(0, 100),
        st.none() | st.integers(0, 200),
        st.none() | st.sampled_from([0.0, 0.01, 1.0, 1e100]),
    ),
    max_size=30,
)


@given(EVENTS)
def test_parts_add_up_and_never_decrease(
    events: list[tuple[str, int, float, int | None, float | None]],
) -> None:
    status, active = NEW, 0.0
    for what, step, passed, first, took in events:
        before, active = status, active + round(passed, 3)
        if what == "reported":
            status = after_report(status, step, active=active, first=first, took=took)
            assert after_report(status, step, active=active, first=first, took=took) == status
        elif what == "at_end":
            status = stored(status.evolve(goodput=at_end(status, after(active))))
        else:
            status = ended(status, active=active, failed_at=step if what == "failed" else None)
        if status.goodput is None:
            assert before.goodput is None
            continue
        assert sum(parts(status)) == pytest.approx(status.goodput.accounted_seconds, abs=0.1)
        assert status.goodput.accounted_seconds <= active + 0.001
        if before.goodput:
            assert all(now >= then for now, then in zip(parts(status), parts(before), strict=True))


def test_seconds_are_stored_in_milliseconds() -> None:
    assert parts(after_report(NEW, 10, first=1, active=30.12345)) == (10, 20.123, 0, 0, 0)


def test_first_step_may_be_zero() -> None:
    status = after_report(NEW, 10, first=0, active=30)
    assert parts(status) == (10, 20, 0, 0, 0)
    assert status.goodput is not None
    assert status.goodput.furthest_step == 10


def test_step_counts_within_one_second() -> None:
    assert parts(after_report(TRAINS, 11, first=1, active=30.5, took=0.5)) == (10.5, 20, 0, 0, 0)
