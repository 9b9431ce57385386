import math
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from trainyard_torch.monitoring.meter import NOT_TRAINING, PHASES, Meter


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def metered(*phases: str | float, window: int = 64) -> Meter:
    """`+data` and `-` open and close a phase, `step` ends a step, a number is seconds that pass."""
    clock = Clock()
    meter = Meter(window, clock)
    for each in phases:
        if isinstance(each, float | int):
            clock.now += each
        elif each == "step":
            meter.step(samples=8, tokens=100)
        elif each == "-":
            meter.leave()
        else:
            meter.enter(each[1:])
    return meter


def totals(meter: Meter) -> dict[str, float]:
    return {phase: seconds for phase, seconds in meter.totals.items() if seconds}


def test_time_is_that_of_the_innermost_phase() -> None:
    meter = metered(1, "+forward", 2, "+communication", 4, "-", 8, "-", 16, "step", 32)
    assert totals(meter) == {"other": 17, "forward": 10, "communication": 4}, "the step that is under way is not in it"


def test_within_a_checkpoint_all_is_the_checkpoint() -> None:
    meter = metered("+evaluate", 1, "+data", 2, "-", "+checkpoint", 4, "-", "-", "+data", 8, "-", "step")
    assert totals(meter) == {"evaluate": 7, "data": 8}


def test_phase_continues_across_steps() -> None:
    meter = metered("+data", 3, "step", 4, "-", "step")
    assert totals(meter) == {"data": 7}


@given(st.lists(st.one_of(st.sampled_from([*(f"+{phase}" for phase in PHASES), "-", "step"]), st.integers(0, 9))))
def test_the_phases_add_up_to_all_time(phases: Sequence[str | int]) -> None:
    depth, sound, passed, counted = 0, [], 0, 0
    for each in phases:
        if each == "-" and not depth:
            continue
        depth += (str(each)[0] == "+") - (each == "-")
        passed += each if isinstance(each, int) else 0
        counted = passed if each == "step" else counted
        sound.append(each)
    meter = metered(*sound)
    assert sum(meter.totals.values()) == counted
    pace = meter.throughput()
    assert not pace.shares or math.isclose(sum(pace.shares.values()), 1)


def test_pace_covers_recent_steps_without_the_first() -> None:
    slow_first = (50, "step")
    steps = [part for seconds in (1, 2, 6) for part in ("+data", seconds, "-", 1, "step")]
    aside = [part for phase in NOT_TRAINING for part in (f"+{phase}", 100, "-")]
    pace = metered(*slow_first, *aside, *steps).throughput()
    assert pace.step_seconds == 3
    assert (pace.steps_per_second, pace.samples_per_second, pace.tokens_per_second) == (3 / 12, 24 / 12, 300 / 12)
    assert pace.shares == {"data": 9 / 312, "other": 3 / 312, **dict.fromkeys(NOT_TRAINING, 100 / 312)}


def test_the_window_is_bounded() -> None:
    assert (
        metered(*[part for seconds in range(10) for part in (seconds, "step")], window=3).throughput().step_seconds == 8
    )


def test_before_the_second_step_nothing_is_known() -> None:
    for meter in (metered(), metered(5, "step")):
        pace = meter.throughput()
        assert (pace.step_seconds, pace.compute_seconds, pace.samples_per_second, pace.shares) == (None, None, None, {})
    assert metered(5, "step").samples == 8


def test_steps_that_take_no_time_have_no_rate() -> None:
    assert metered("step", "step").throughput().samples_per_second is None


def test_own_work_is_a_median() -> None:
    meter = metered()
    for seconds in (3.0, 90.0, 4.0):
        meter.computed(seconds)
    assert meter.throughput().compute_seconds == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Meter(window=0), "window must be from 1 on, got 0"),
        (lambda: Meter().enter("loading"), "phase must be one of data, .* got 'loading'"),
        (lambda: Meter().step(samples=-1), "samples and tokens must be from 0 on, got -1 and 0"),
        (lambda: Meter().step(tokens=-2), "got 0 and -2"),
    ],
)
def test_values_that_make_no_sense(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]  # a function
