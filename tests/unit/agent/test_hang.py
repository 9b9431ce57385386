"""When a rank counts as one that hangs."""

import pytest

from trainyard_agent.hang import ALLOWANCES, MIN_LIMIT_SECONDS, REMEMBERED_STEPS, Hang, Usual, Watch
from trainyard_agent.report import MIN_STEPS, RankState

LAST = RankState(9, "train")


def train(watch: Watch, *, steps: int = 10, took: float = 1.0, ranks: tuple[int, ...] = (0,), first: int = 0) -> float:
    """Steps that take so long each; returns the time of the last one."""
    now = 1000.0 * first
    for step in range(first, first + steps):
        now = 1000.0 * first + (step - first) * took
        assert watch.update(dict.fromkeys(ranks, RankState(step, "train")), now) is None
    return now


def stands(watch: Watch, begin: float, seconds: float, said: RankState | dict[int, RankState]) -> Hang | None:
    """For so long nothing else is said; the agent looks each second."""
    words = said if isinstance(said, dict) else {0: said}
    looks = (watch.update(words, begin + second) for second in range(1, int(seconds) + 1))
    return next((hang for hang in looks if hang), None)


@pytest.mark.parametrize(("took", "patience"), [(0.5, MIN_LIMIT_SECONDS), (2.0, MIN_LIMIT_SECONDS), (9.0, 45.0)])
def test_hang_limit_is_five_steps_with_minimum(took: float, patience: float) -> None:
    watch = Watch()
    end = train(watch, took=took)
    assert stands(watch, end, patience, LAST) is None
    hang = stands(watch, end + patience, 1, LAST)
    assert hang == Hang(rank=0, step=9, phase="train", seconds=patience + 1, usual=took)


@pytest.mark.parametrize(("took", "each"), [(0.5, 100), (3.5, 10), (5.0, 10), (4.0, 100), (10.0, 8)])
def test_hang_limit_considers_reporting_interval(took: float, each: int) -> None:
    watch, said = Watch(), RankState(0, "train")
    for second in range(int(10 * took * each)):
        said = RankState(int(second / took) // each * each, "train")
        assert watch.update({0: said}, second) is None
    last = 10 * took * each - took * each
    hang = stands(watch, last, 6 * took * each + MIN_LIMIT_SECONDS, said)
    assert hang is not None
    assert hang.seconds >= 5 * took * each
    assert hang.usual == pytest.approx(took, rel=0.1), "of a step"


def test_configured_limit_overrides_default() -> None:
    watch = Watch(10.0)
    end = train(watch, took=0.5)
    assert stands(watch, end, 10, LAST) is None
    assert stands(watch, end + 10, 1, LAST) is not None


def test_final_save_after_last_step_is_allowed() -> None:
    watch = Watch(10.0)
    end = train(watch, took=0.5)
    done = RankState(9, "train", total=9)
    assert stands(watch, end, ALLOWANCES["evaluate"], done) is None
    assert stands(watch, end + ALLOWANCES["evaluate"], 1, done) is not None


def test_silent_rank_is_never_hung() -> None:
    assert stands(Watch(1.0), 0.0, 10_000, {}) is None


def test_first_steps_have_compile_allowance() -> None:
    """Compilers, caches, and the first batches: it is not known yet what is usual."""
    watch = Watch()
    end, last = train(watch, steps=2), RankState(1, "train")
    assert stands(watch, end, ALLOWANCES["compile"], last) is None
    assert stands(watch, end + ALLOWANCES["compile"], 1, last) is not None


@pytest.mark.parametrize("phase", [*ALLOWANCES])
def test_each_phase_has_its_own_allowance(phase: str) -> None:
    watch, said = Watch(), RankState(None, phase)
    end = train(watch)
    assert stands(watch, end, 1 + ALLOWANCES[phase], said) is None
    hang = stands(watch, end + 1 + ALLOWANCES[phase], 1, said)
    assert hang is not None
    assert (hang.step, hang.phase) == (9, phase)


def test_phase_does_not_change_usual_step_time() -> None:
    watch = Watch()
    end = train(watch)
    assert stands(watch, end, 300, RankState(9, "evaluate")) is None
    assert stands(watch, end + 300, 20, LAST) is None
    end = train(watch, steps=2, first=10)
    hang = stands(watch, end, MIN_LIMIT_SECONDS + 1, RankState(11, "train"))
    assert hang is not None
    assert hang.usual == 1.0


def test_slowest_rank_is_named() -> None:
    watch = Watch()
    end = train(watch, ranks=(4, 5, 6))
    hang = stands(watch, end, 2 * MIN_LIMIT_SECONDS, {4: RankState(10, "train"), 5: LAST, 6: RankState(10, "train")})
    assert hang is not None
    assert (hang.rank, hang.step) == (5, 9)


def test_longest_stalled_rank_is_named() -> None:
    watch = Watch()
    end = train(watch, ranks=(4, 5))
    assert watch.update({4: RankState(10, "train"), 5: LAST}, end + 1) is None
    hang = stands(watch, end + 10, 2 * MIN_LIMIT_SECONDS, {4: RankState(10, "train"), 5: RankState(10, "train")})
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
    assert stands(watch, end, MIN_LIMIT_SECONDS, LAST) is None
    assert stands(watch, end + MIN_LIMIT_SECONDS, 1, LAST) is not None


def test_decreasing_step_counts_as_progress() -> None:
    """A new epoch, or a checkpoint from before."""
    watch = Watch()
    end = train(watch)
    assert stands(watch, end, MIN_LIMIT_SECONDS, LAST) is None
    assert stands(watch, end + MIN_LIMIT_SECONDS, MIN_LIMIT_SECONDS + 1, RankState(0, "train")) is None
    assert stands(watch, end + 2 * MIN_LIMIT_SECONDS + 1, 1, RankState(0, "train")) is not None


def test_usual_time_counts_steps_not_polls() -> None:
    """Many steps between two looks are enough to know what is usual."""
    watch = Watch(limit=10.0)
    watch.update({0: RankState(0, "train")}, 1000.0)
    watch.update({0: RankState(8, "train")}, 1001.0)
    assert watch.usual == {0: Usual(0.125)}
    hangs = [watch.update({0: RankState(8, "train")}, 1001.0 + seconds) for seconds in range(1, 12)]
    assert [hang is not None for hang in hangs] == [False] * 10 + [True]


def working(*seconds: float | None, first: int = 0, watch: Watch | None = None) -> Watch:
    """Rank 0 tells of each step how long it worked itself."""
    if watch is None:
        watch = Watch()
        watch.update({0: RankState(None, "start")}, -1.0)
    for step, own in enumerate(seconds, first):
        watch.update({0: RankState(step, "train", compute_seconds=own)}, float(step))
        watch.update({0: RankState(step, "train", compute_seconds=own)}, step + 0.5)
    return watch


def test_compute_time_is_median_of_recent_steps() -> None:
    assert working(*[0.2] * (MIN_STEPS - 1)).usual[0].compute is None
    watch = working(0.2, 0.3, 9.0)
    assert watch.usual[0].compute == 0.3
    working(*[0.5] * REMEMBERED_STEPS, first=3, watch=watch)
    assert watch.usual == {0: Usual(1.0, 0.5)}


@pytest.mark.parametrize("own", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_invalid_compute_time_is_ignored(own: float | None) -> None:
    assert working(*[own] * 9).usual[0].compute is None
    assert working(0.2, own, 0.2, own, 0.2).usual[0].compute == 0.2


def test_compute_time_counts_before_a_checkpoint() -> None:
    watch = Watch()
    watch.update({0: RankState(None, "start")}, -1.0)
    for step in range(MIN_STEPS):
        watch.update({0: RankState(step, "checkpoint", compute_seconds=0.2)}, step)
        watch.update({0: RankState(step, "train")}, step + 0.5)
    assert watch.usual[0].compute == 0.2
