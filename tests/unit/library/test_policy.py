import math
from typing import Any

import pytest

from trainyard_torch.checkpoint.interval import SaveInterval
from trainyard_torch.checkpoint.policy import CheckpointPolicy, SaveSchedule, Tier

M, S = Tier.MEMORY, Tier.STORE


def test_by_the_number_of_the_step() -> None:
    pace = SaveSchedule(CheckpointPolicy(store=SaveInterval(steps=4), memory=SaveInterval(steps=2)), 0)
    assert [pace.due_at_step(step) for step in range(1, 9)] == [None, M, None, S, None, M, None, S]
    assert pace.due_by_time(10**6) is None


def test_by_the_time_each_tier_has_its_own() -> None:
    pace = SaveSchedule(CheckpointPolicy(store=SaveInterval(seconds=100), memory=SaveInterval(seconds=30)), 1000)
    assert [pace.due_by_time(1000 + elapsed) for elapsed in (29, 30, 99, 100)] == [None, M, M, S]
    pace.made(M, 7, began=1090, now=1092)
    assert (pace.step, pace.stall_seconds, pace.since(1095)) == (7, 2, 3)
    assert [pace.due_by_time(time) for time in (1099, 1100)] == [None, S], "what is in memory is not stored"
    pace.made(S, 8, began=1100, now=1101)
    assert [pace.due_by_time(time) for time in (1130, 1131, 1200, 1201)] == [None, M, M, S], (
        "what is stored is in memory"
    )


def test_without_memory() -> None:
    pace = SaveSchedule(CheckpointPolicy(store=SaveInterval(seconds=100)), 0)
    assert [pace.due_by_time(time) for time in (99, 100)] == [None, S]


def test_by_cost_and_failures() -> None:
    calm, storm = SaveSchedule(CheckpointPolicy(), 0), SaveSchedule(CheckpointPolicy(), 0)
    for pace, failures in ((calm, 2), (storm, 200)):
        pace.began(86400, failures, 0)
        assert [pace.due_by_time(time) for time in (9, 10)] == [None, S], "the first one shows what it costs"
        pace.made(S, 1, began=10, now=10.5)
    time = next(time for time in range(10, 4000) if storm.due_by_time(time))
    assert calm.due_by_time(time) is None


def test_failing_memory_pauses_twice_as_long_each_time() -> None:
    pace = SaveSchedule(CheckpointPolicy(store=SaveInterval(steps=1000), memory=SaveInterval(steps=5)), 0)
    pace.began(0, 0, 0, step=100)
    tried = []
    for step in range(101, 400):
        if pace.due_at_step(step):
            pace.made(M, step, began=0, now=0)
            pace.memory_failed()
            tried.append(step)
    assert tried == [105, 115, 135, 175, 255]


def test_pause_expires_and_resets_after_success() -> None:
    pace = SaveSchedule(CheckpointPolicy(store=SaveInterval(steps=7), memory=SaveInterval(seconds=10)), 0)
    pace.made(M, 4, began=0, now=0)
    pace.memory_failed()
    assert [pace.memory_paused(step) for step in (11, 12)] == [True, False]
    assert [pace.due_by_time(10, step) for step in (11, 12)] == [None, M]
    assert pace.due_at_step(7) == S, "what goes into the store is not held up"
    pace.made(M, 12, began=10, now=10)
    pace.memory_saved()
    assert [pace.due_by_time(20, step) for step in (13, 14)] == [M, M]
    pace.memory_failed()
    assert [pace.memory_paused(step) for step in (27, 28)] == [True, False], "the first failure again"


def test_a_pause_does_not_grow_for_ever() -> None:
    pace = SaveSchedule(CheckpointPolicy(memory=SaveInterval(steps=1)), 0)
    for step in range(1, 21):
        pace.made(M, step, began=0, now=0)
        pace.memory_failed()
    assert (pace.memory_paused(20 + 255), pace.memory_paused(20 + 256)) == (True, False)


@pytest.mark.parametrize("name", ["operation_timeout_seconds", "save_timeout_seconds"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_times_that_are_none(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive number of seconds, got {value}"):
        CheckpointPolicy(**{name: value})  # type: ignore[arg-type]


def test_the_bound_of_what_is_waited_for() -> None:
    assert CheckpointPolicy(operation_timeout_seconds=5, save_timeout_seconds=100).give_up_seconds == 165


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"store": 600}, r"store must be a SaveInterval, such as SaveInterval\(seconds=600\), got 600"),
        ({"store": None}, "store must be a SaveInterval"),
        ({"memory": 10.0}, "memory must be a SaveInterval"),
        ({"keep": 3}, r"keep must be a Retention, such as Retention\(last=3\), got 3"),
        ({"save_timeout_seconds": "1800"}, "save_timeout_seconds must be a positive number of seconds, got '1800'"),
    ],
)
def test_values_of_other_types_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CheckpointPolicy(**values)
