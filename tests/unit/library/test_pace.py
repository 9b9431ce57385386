import math

import pytest

from trainyard_torch.checkpoint.interval import Due
from trainyard_torch.checkpoint.pace import Pace, Plan, Tier

M, S = Tier.MEMORY, Tier.STORE


def test_by_the_number_of_the_step() -> None:
    pace = Pace(Plan(store=Due(steps=4), memory=Due(steps=2)), 0)
    assert [pace.at(step) for step in range(1, 9)] == [None, M, None, S, None, M, None, S]
    assert pace.by(10**6) is None


def test_by_the_time_each_tier_has_its_own() -> None:
    pace = Pace(Plan(store=Due(seconds=100), memory=Due(seconds=30)), 1000)
    assert [pace.by(1000 + elapsed) for elapsed in (29, 30, 99, 100)] == [None, M, M, S]
    pace.made(M, 7, began=1090, now=1092)
    assert (pace.step, pace.stall, pace.since(1095)) == (7, 2, 3)
    assert [pace.by(time) for time in (1099, 1100)] == [None, S], "what is in memory is not stored"
    pace.made(S, 8, began=1100, now=1101)
    assert [pace.by(time) for time in (1130, 1131, 1200, 1201)] == [None, M, M, S], "what is stored is in memory"


def test_without_memory() -> None:
    pace = Pace(Plan(store=Due(seconds=100)), 0)
    assert [pace.by(time) for time in (99, 100)] == [None, S]


def test_by_cost_and_failures() -> None:
    calm, storm = Pace(Plan(), 0), Pace(Plan(), 0)
    for pace, failures in ((calm, 2), (storm, 200)):
        pace.began(86400, failures, 0)
        assert [pace.by(time) for time in (9, 10)] == [None, S], "the first one shows what it costs"
        pace.made(S, 1, began=10, now=10.5)
    time = next(time for time in range(10, 4000) if storm.by(time))
    assert calm.by(time) is None


def test_what_cannot_be_kept_in_memory_pauses_twice_as_long_each_time() -> None:
    pace = Pace(Plan(store=Due(steps=1000), memory=Due(steps=5)), 0)
    pace.began(0, 0, 0, step=100)
    tried = []
    for step in range(101, 400):
        if pace.at(step):
            pace.made(M, step, began=0, now=0)
            pace.forgot()
            tried.append(step)
    assert tried == [105, 115, 135, 175, 255]


def test_the_pause_ends_and_is_over_once_it_works() -> None:
    pace = Pace(Plan(store=Due(steps=7), memory=Due(seconds=10)), 0)
    pace.made(M, 4, began=0, now=0)
    pace.forgot()
    assert [pace.pauses(step) for step in (11, 12)] == [True, False]
    assert [pace.by(10, step) for step in (11, 12)] == [None, M]
    assert pace.at(7) == S, "what goes into the store is not held up"
    pace.made(M, 12, began=10, now=10)
    pace.remembered()
    assert [pace.by(20, step) for step in (13, 14)] == [M, M]
    pace.forgot()
    assert [pace.pauses(step) for step in (27, 28)] == [True, False], "the first failure again"


def test_a_pause_does_not_grow_for_ever() -> None:
    pace = Pace(Plan(memory=Due(steps=1)), 0)
    for step in range(1, 21):
        pace.made(M, step, began=0, now=0)
        pace.forgot()
    assert (pace.pauses(20 + 255), pace.pauses(20 + 256)) == (True, False)


@pytest.mark.parametrize("name", ["operation_seconds", "save_seconds"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_times_that_are_none(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive number of seconds, and is {value}"):
        Plan(**{name: value})  # type: ignore[arg-type]


def test_the_bound_of_what_is_waited_for() -> None:
    assert Plan(operation_seconds=5, save_seconds=100).patience == 165
