"""Faults that are measured one after another, where some cannot be measured."""

from types import SimpleNamespace
from typing import Any

import pytest

from dev.benchmarks.recovery.results import Run
from dev.benchmarks.recovery.series import FAILED, HOPELESS, Series
from dev.benchmarks.scale.api import BenchmarkError


class Trial:
    """Measures only faults whose name is no `bad` one."""

    def go(self, fault: str, repeat: int) -> Run:
        if fault.startswith("bad"):
            raise BenchmarkError("no step")
        return Run(fault, "ours", repeat, 1.0)


def measure(*faults: str, runs: tuple[Run, ...] = ()) -> list[str]:
    record: Any = SimpleNamespace(runs=runs)
    named: Any = {fault: fault for fault in faults}
    trial: Any = Trial()
    return [run.fault for run in Series(record, named).measure(trial, "ours", 1, faults)]


def test_failed_trials_are_left_out() -> None:
    assert measure("kill", "bad-1", "bad-2", "pod", "bad-3", "bad-4", "node") == ["kill", "pod", "node"]


def test_failures_in_a_row_end_the_series() -> None:
    with pytest.raises(BenchmarkError, match="no step"):
        measure(*(f"bad-{number}" for number in range(FAILED)), "kill")


def test_hopeless_fault_is_skipped() -> None:
    never = tuple(Run("kill", "ours", repeat) for repeat in range(HOPELESS))
    assert measure("kill", "pod", runs=never) == ["pod"]
