"""Measure faults one after another, with a record of each run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dev.benchmarks.recovery.faults import Fault
from dev.benchmarks.recovery.record import Record
from dev.benchmarks.recovery.results import Run, hopeless, line
from dev.benchmarks.recovery.trial import Trial
from dev.benchmarks.scale.api import BenchmarkError
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.say import complain, say

HOPELESS: Final = 2
"""After this many first repeats without a recovery, skip the others."""
FAILED: Final = 3
"""Consecutive failed trials after which the benchmark stops."""


@dataclass(slots=True)
class Series:
    """Trials in a row. The error of a trial is raised if it is the third (`FAILED`) to fail without a success in between."""

    record: Record
    faults: Mapping[str, Fault]
    """By name."""
    failed: int = 0
    """Consecutive trials so far that failed."""

    def measure(self, trial: Trial, system: str, repeat: int, faults: Sequence[str]) -> Iterator[Run]:
        """Yield the run of each fault. Raises BenchmarkError or LocalClusterError, as the class says."""
        for fault in faults:
            if hopeless(self.record.runs, fault, system, HOPELESS):
                continue
            try:
                run = trial.go(self.faults[fault], repeat)
            except (BenchmarkError, LocalClusterError) as error:
                self.failed += 1
                if self.failed == FAILED:
                    raise
                complain(f"{fault} {system} {repeat} was not measured: {error}")
                continue
            self.failed = 0
            yield run


def keep(runs: Iterator[Run], record: Record) -> None:
    """Record and print each run at once."""
    for run in runs:
        record.add(run)
        say(line(run))
