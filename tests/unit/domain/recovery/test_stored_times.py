"""Times in the status that are yet to come, by a clock that was set back or by hand. No timestamp stays that could not be written now."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.jobs import NOW, ago, job, stored
from trainyard.api.internal_status import Backoff, RestartBudget
from trainyard.api.status import Avoidance, Restarts, SuspectNode
from trainyard.domain.plan import plan
from trainyard.domain.recovery.stored_times import clamp_future_timestamps

FAR = datetime(9000, 1, 1, tzinfo=UTC)
DAY = timedelta(hours=24)


@pytest.mark.parametrize(
    ("count", "not_before", "wait"),
    [
        pytest.param(3, ago(-604), 4.0, id="by a clock ten minutes ahead"),
        pytest.param(3, FAR, 4.0, id="by hand"),
        pytest.param(3, ago(-3), 3.0, id="as it was decided a second ago"),
        pytest.param(9, FAR, 60.0, id="never longer than a minute"),
    ],
)
def test_backoff_is_bounded_by_this_clock(count: int, not_before: datetime, wait: float) -> None:
    scene = job(1).started(2).with_status(backoff=Backoff(count=count, not_before=not_before))
    decided = plan(scene.snapshot, NOW)
    assert (decided.actions, decided.requeue_after) == ([], wait)
    assert decided.status.internal.backoff.not_before == NOW + timedelta(seconds=wait)


def test_node_is_avoided_for_at_most_a_day() -> None:
    node = SuspectNode(name="bad", avoidance=Avoidance.REQUIRED, until=FAR)
    scene = job(3).created().with_status(suspect_nodes=[node]).waiting(1, "Unschedulable", scheduled=False)
    decided = plan(scene.snapshot, NOW)
    assert [each.until for each in decided.status.suspect_nodes] == [NOW + DAY]
    later = plan(scene.with_status(**dict(stored(decided.status))).snapshot, NOW + DAY)
    assert later.status.suspect_nodes == []


def test_nodes_in_time_excuse_no_other() -> None:
    nodes = [SuspectNode(name=name, until=until) for name, until in (("good", NOW), ("bad", FAR))]
    clamped = clamp_future_timestamps(job(3).running().status.evolve(suspect_nodes=nodes), NOW)
    assert [each.until for each in clamped["suspect_nodes"]] == [NOW, NOW + DAY]


def test_failure_in_the_future_ages_from_now() -> None:
    limited = job(3, recovery={"windowSeconds": 3600, "maxRestarts": 1}).running()
    decided = plan(
        limited.with_status(restarts=Restarts(failures=1), restart_budget=RestartBudget(recent=[FAR])).snapshot, NOW
    )
    assert decided.status.restarts == Restarts(failures=1)
    assert decided.status.internal.restart_budget.recent == [NOW]
    later = limited.with_status(restarts=decided.status.restarts).failed(1)
    assert plan(later.snapshot, NOW + timedelta(hours=1)).status.finished is False


def test_plausible_times_are_left_unchanged() -> None:
    node = SuspectNode(name="bad", until=NOW + DAY)
    status = (
        job(3)
        .running()
        .status.evolve(
            suspect_nodes=[node],
            backoff=Backoff(count=3, not_before=ago(-4)),
            restarts=Restarts(failures=2),
            restart_budget=RestartBudget(recent=[ago(5), NOW]),
        )
    )
    assert clamp_future_timestamps(status, NOW) == {}
