"""When a rank counts as hung."""

import pytest

from trainyard_agent.hang import (
    ALLOWANCES,
    MIN_GPU_LIMIT_SECONDS,
    MIN_LIMIT_SECONDS,
    REMEMBERED_STEPS,
    Hang,
    Usual,
    Watch,
)
from trainyard_agent.report import RankState
from trainyard_agent.report_file import MIN_STEPS

LAST = RankState(9, "train")


def train(
    watch: Watch, *, steps: int = 10, step_seconds: float = 1.0, ranks: tuple[int, ...] = (0,), first: int = 0
) -> float:
    """Report steps of equal length, and return the time of the last one."""
    now = 1000.0 * first
    for step in range(first, first + steps):
        now = 1000.0 * first + (step - first) * step_seconds
        assert watch.update(dict.fromkeys(ranks, RankState(step, "train")), now) is None
    return now


def stall(watch: Watch, start: float, seconds: float, state: RankState | dict[int, RankState]) -> Hang | None:
    """Report the same state each second for so long, and return the hang that is found."""
    states = state if isinstance(state, dict) else {0: state}
    polls = (watch.update(states, start + second) for second in range(1, int(seconds) + 1))
    return next((hang for hang in polls if hang), None)


@pytest.mark.parametrize(("step_seconds", "limit"), [(0.5, MIN_LIMIT_SECONDS), (2.0, MIN_LIMIT_SECONDS), (9.0, 45.0)])
def test_hang_limit_is_five_steps_with_minimum(step_seconds: float, limit: float) -> None:
    watch = Watch()
    end = train(watch, step_seconds=step_seconds)
    assert stall(watch, end, limit, LAST) is None
    hang = stall(watch, end + limit, 1, LAST)
    assert hang == Hang(rank=0, step=9, phase="train", seconds=limit + 1, usual=step_seconds)


@pytest.mark.parametrize(("step_seconds", "each"), [(0.5, 100), (3.5, 10), (5.0, 10), (4.0, 100), (10.0, 8)])
def test_hang_limit_considers_reporting_interval(step_seconds: float, each: int) -> None:
    watch, state = Watch(), RankState(0, "train")
    for second in range(int(10 * step_seconds * each)):
        state = RankState(int(second / step_seconds) // each * each, "train")
        assert watch.update({0: state}, second) is None
    last = 10 * step_seconds * each - step_seconds * each
    hang = stall(watch, last, 6 * step_seconds * each + MIN_LIMIT_SECONDS, state)
    assert hang is not None
    assert hang.seconds >= 5 * step_seconds * each
    assert hang.usual == pytest.approx(step_seconds, rel=0.1), "of a step"


def test_gpus_get_more_time_for_a_step() -> None:
    """The first collective of a group or a slow read takes 40 seconds, and returns after each restart."""
    watch = Watch(least=MIN_GPU_LIMIT_SECONDS)
    end = train(watch, step_seconds=0.5)
    assert stall(watch, end, MIN_GPU_LIMIT_SECONDS, LAST) is None
    assert stall(watch, end + MIN_GPU_LIMIT_SECONDS, 1, LAST) is not None


def test_reported_compilation_within_a_step_is_allowed() -> None:
    watch = Watch()
    end = train(watch)
    compiling = RankState(9, "compile")
    assert stall(watch, end, ALLOWANCES["compile"], compiling) is None
    # The rest of the step is measured from its end.
    assert stall(watch, end + ALLOWANCES["compile"], MIN_LIMIT_SECONDS, LAST) is None
    assert stall(watch, end + ALLOWANCES["compile"] + MIN_LIMIT_SECONDS, 2, LAST) is not None


def test_configured_limit_overrides_default() -> None:
    watch = Watch(10.0)
    end = train(watch, step_seconds=0.5)
    assert stall(watch, end, 10, LAST) is None
    assert stall(watch, end + 10, 1, LAST) is not None


def test_final_save_after_last_step_is_allowed() -> None:
    watch = Watch(10.0)
    end = train(watch, step_seconds=0.5)
    done = RankState(9, "train", total=9)
    assert stall(watch, end, ALLOWANCES["evaluate"], done) is None
    assert stall(watch, end + ALLOWANCES["evaluate"], 1, done) is not None


def test_silent_rank_is_never_hung() -> None:
    assert stall(Watch(1.0), 0.0, 10_000, {}) is None


def test_first_steps_have_compile_allowance() -> None:
    """Compilers, caches and the first batches take time, and no usual step time is known."""
    watch = Watch()
    end, last = train(watch, steps=2), RankState(1, "train")
    assert stall(watch, end, ALLOWANCES["compile"], last) is None
    assert stall(watch, end + ALLOWANCES["compile"], 1, last) is not None


@pytest.mark.parametrize("phase", [*ALLOWANCES])
def test_each_phase_has_its_own_allowance(phase: str) -> None:
    watch, state = Watch(), RankState(None, phase)
    end = train(watch)
    assert stall(watch, end, 1 + ALLOWANCES[phase], state) is None
    hang = stall(watch, end + 1 + ALLOWANCES[phase], 1, state)
    assert hang is not None
    assert (hang.step, hang.phase) == (9, phase)


def test_phase_does_not_change_usual_step_time() -> None:
    watch = Watch()
    end = train(watch)
    assert stall(watch, end, 300, RankState(9, "evaluate")) is None
    assert stall(watch, end + 300, 20, LAST) is None
    end = train(watch, steps=2, first=10)
    hang = stall(watch, end, MIN_LIMIT_SECONDS + 1, RankState(11, "train"))
    assert hang is not None
    assert hang.usual == 1.0


def test_slowest_rank_is_named() -> None:
    watch = Watch()
    end = train(watch, ranks=(4, 5, 6))
    hang = stall(watch, end, 2 * MIN_LIMIT_SECONDS, {4: RankState(10, "train"), 5: LAST, 6: RankState(10, "train")})
    assert hang is not None
    assert (hang.rank, hang.step) == (5, 9)


def test_longest_stalled_rank_is_named() -> None:
    watch = Watch()
    end = train(watch, ranks=(4, 5))
    assert watch.update({4: RankState(10, "train"), 5: LAST}, end + 1) is None
    hang = stall(watch, end + 10, 2 * MIN_LIMIT_SECONDS, {4: RankState(10, "train"), 5: RankState(10, "train")})
    assert hang is not None
    assert hang.rank == 4


def test_exited_rank_is_not_hung() -> None:
    watch = Watch()
    end = train(watch, ranks=(0, 1))
    for step in range(100):
        assert watch.update({0: RankState(10 + step, "train")}, end + step) is None


def test_suspended_agent_reports_no_hang() -> None:
    watch = Watch()
    end = train(watch) + 3600
    assert watch.update({0: LAST}, end) is None
    assert stall(watch, end, MIN_LIMIT_SECONDS, LAST) is None
    assert stall(watch, end + MIN_LIMIT_SECONDS, 1, LAST) is not None


def test_decreasing_step_counts_as_progress() -> None:
    """A new epoch or an older checkpoint starts with a lower step."""
    watch = Watch()
    end = train(watch)
    assert stall(watch, end, MIN_LIMIT_SECONDS, LAST) is None
    assert stall(watch, end + MIN_LIMIT_SECONDS, MIN_LIMIT_SECONDS + 1, RankState(0, "train")) is None
    assert stall(watch, end + 2 * MIN_LIMIT_SECONDS + 1, 1, RankState(0, "train")) is not None


def test_usual_time_counts_steps_not_polls() -> None:
    """Many steps between two polls are enough for a usual step time."""
    watch = Watch(limit=10.0)
    watch.update({0: RankState(0, "train")}, 1000.0)
    watch.update({0: RankState(8, "train")}, 1001.0)
    assert watch.usual == {0: Usual(0.125)}
    hangs = [watch.update({0: RankState(8, "train")}, 1001.0 + seconds) for seconds in range(1, 12)]
    assert [hang is not None for hang in hangs] == [False] * 10 + [True]


def with_compute_times(*seconds: float | None, first: int = 0, watch: Watch | None = None) -> Watch:
    """Report the compute time of each step of rank 0."""
    if watch is None:
        watch = Watch()
        watch.update({0: RankState(None, "start")}, -1.0)
    for step, compute in enumerate(seconds, first):
        watch.update({0: RankState(step, "train", compute_seconds=compute)}, float(step))
        watch.update({0: RankState(step, "train", compute_seconds=compute)}, step + 0.5)
    return watch


def test_compute_time_is_median_of_recent_steps() -> None:
    assert with_compute_times(*[0.2] * (MIN_STEPS - 1)).usual[0].compute is None
    watch = with_compute_times(0.2, 0.3, 9.0)
    assert watch.usual[0].compute == 0.3
    with_compute_times(*[0.5] * REMEMBERED_STEPS, first=3, watch=watch)
    assert watch.usual == {0: Usual(1.0, 0.5)}


@pytest.mark.parametrize("compute", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_invalid_compute_time_is_ignored(compute: float | None) -> None:
    assert with_compute_times(*[compute] * 9).usual[0].compute is None
    assert with_compute_times(0.2, compute, 0.2, compute, 0.2).usual[0].compute == 0.2


def test_compute_time_counts_before_a_checkpoint() -> None:
    watch = Watch()
    watch.update({0: RankState(None, "start")}, -1.0)
    for step in range(MIN_STEPS):
        watch.update({0: RankState(step, "checkpoint", compute_seconds=0.2)}, step)
        watch.update({0: RankState(step, "train")}, step + 0.5)
    assert watch.usual[0].compute == 0.2
