import math

import pytest

from trainyard_torch.checkpoint.interval import LEAST_SECONDS, MOST_SECONDS, SaveInterval, daly


def expected_seconds(interval: float, stall: float, between: float) -> float:
    """Of a second of work, with failures that come at random (Daly, equation 13, restarts left out)."""
    return between * (math.exp((interval + stall) / between) - 1) / interval


@pytest.mark.parametrize(("stall", "between"), [(0.5, 10800), (30, 3600), (60, 600), (200, 900)])
def test_no_other_interval_costs_less(stall: float, between: float) -> None:
    best = daly(stall, between)
    cost = expected_seconds(best, stall, between)
    for other in (0.5, 0.8, 1.25, 2):
        assert cost < expected_seconds(other * best, stall, between)


def test_half_a_second_every_three_hours() -> None:
    assert daly(0.5, 10800) == pytest.approx(103.6, abs=0.3)


def test_where_failures_come_faster_than_checkpoints() -> None:
    assert daly(30, 10) == 10


@pytest.mark.parametrize(("stall", "between"), [(0, 1), (-1, 1), (1, 0), (math.inf, 1), (1, math.nan)])
def test_times_that_are_none(stall: float, between: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        daly(stall, between)


def test_by_steps() -> None:
    rule = SaveInterval(steps=5)
    assert [step for step in range(1, 12) if rule.due_at_step(step)] == [5, 10]
    assert not rule.due_by_time(10**6, stall=1, age=10**6, failures=9), "the time says nothing"


def test_by_time() -> None:
    rule = SaveInterval(seconds=60)
    assert [rule.due_by_time(elapsed, stall=0, age=0, failures=0) for elapsed in (59, 60)] == [False, True]
    assert not rule.due_at_step(60), "the step says nothing"


def test_by_share() -> None:
    assert SaveInterval(overhead=0.01).interval(stall=2, age=0, failures=0) == 200
    assert SaveInterval(overhead=0.01).interval(stall=0.01, age=0, failures=0) == LEAST_SECONDS


def test_by_what_is_measured() -> None:
    rule = SaveInterval()
    assert rule.interval(0, 0, 0) == LEAST_SECONDS, "the first one shows what it costs"
    calm, storm = rule.interval(0.5, 86400, 2), rule.interval(0.5, 86400, 200)
    assert storm < calm < MOST_SECONDS
    assert rule.interval(10**6, 0, 0) == MOST_SECONDS


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"steps": 1, "seconds": 1}, "two rules"),
        ({"steps": "100"}, "steps must be a positive number, got '100'"),
        ({"steps": 0}, "steps must be a positive number"),
        ({"seconds": -1}, "seconds must be a positive number"),
        ({"overhead": math.nan}, "overhead must be a positive number"),
    ],
)
def test_rules_that_make_no_sense(rule: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SaveInterval(**rule)  # type: ignore[arg-type]  # numbers of either kind
