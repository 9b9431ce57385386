"""`python -m dev.benchmarks.linear`: ten times the pods may cost at most ten times as much, plus a margin for noise.

Fails on anything quadratic, and on a peak of memory above the limit. Measures this operator alone.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.scale.cluster import ground
from dev.benchmarks.scale.fleet import Fleet, Outing
from dev.benchmarks.scale.results import Run
from dev.benchmarks.scale.systems.base import Ground
from dev.benchmarks.scale.systems.trainyard import Trainyard
from dev.benchmarks.scale.trial import Trial
from dev.localcluster.say import complain, say

SMALL: Final = 500
TIMES: Final = 10
MOST_GROWTH: Final = 2.0
"""Largest allowed ratio of the cost per pod in the large fleet to that in the small one. Quadratic cost would be 10."""
MOST_MIB: Final = 150.0
DEADLINE_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Pair:
    """The same shape of fleet, small and large."""

    name: str
    small: Run
    large: Run

    def cpu_growth(self) -> float:
        """Return the ratio of CPU time per pod, large fleet to small fleet."""
        return _growth(self.small.cpu_s, self.large.cpu_s, self)

    def time_growth(self) -> float:
        """Return the ratio of time per pod until the status reports it, large fleet to small fleet."""
        return _growth(self.small.status_s, self.large.status_s, self)

    def complaints(self) -> list[str]:
        """Return one sentence for each exceeded limit."""
        if unfinished := [run.note for run in (self.small, self.large) if run.note]:
            return [f"{self.name}: {note}" for note in unfinished]
        found = [
            f"{self.name}: {what} a pod grows by {growth:.2f} from {self.small.pods:,} to {self.large.pods:,} pods;"
            f" {MOST_GROWTH} is allowed"
            for what, growth in (("CPU time", self.cpu_growth()), ("time", self.time_growth()))
            if growth > MOST_GROWTH
        ]
        if (self.large.rss_mib or 0.0) > MOST_MIB:
            found.append(
                f"{self.name}: the peak of {self.large.pods:,} pods is {self.large.rss_mib:.0f} MiB;"
                f" {MOST_MIB:.0f} are allowed"
            )
        return found

    def describe(self) -> str:
        """Return the measurements as text."""
        lines = [
            f"  {run.pods:>6,} pods: created {run.created_s:.1f} s, status {run.status_s:.1f} s, CPU {run.cpu_s:.2f} s"
            f" ({1000 * (run.cpu_s or 0) / run.pods:.2f} ms a pod), peak {run.rss_mib:.0f} MiB"
            for run in (self.small, self.large)
            if not run.note
        ]
        return "\n".join([self.name, *lines])


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and return the exit code: 1 if the cost grows too fast or cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.linear", description=__doc__)
    parser.add_argument("--pods", type=int, default=SMALL, help="pods of the small fleets")
    parser.add_argument("--times", type=int, default=TIMES, help="factor from the small to the large fleets")
    options = parser.parse_args(words)
    try:
        with ground() as place:
            pairs = [
                _pair(place, "one job", Fleet(1, options.pods), Fleet(1, options.pods * options.times)),
                _pair(place, "many jobs", Fleet(options.pods, 1), Fleet(options.pods * options.times, 1)),
            ]
    except BenchmarkError as error:
        complain(f"the benchmark failed: {error}")
        return 1
    complaints = [complaint for pair in pairs for complaint in pair.complaints()]
    for complaint in complaints:
        complain(complaint)
    return 1 if complaints else 0


def _pair(place: Ground, name: str, small: Fleet, large: Fleet) -> Pair:
    trial = Trial(Trainyard(), place, repeat=0, patience=DEADLINE_SECONDS)
    runs = [trial.go(Outing(f"linear-{fleet.jobs}x{fleet.workers}", fleet))[0] for fleet in (small, large)]
    pair = Pair(name, *runs)
    say(pair.describe())
    return pair


def _growth(small: float | None, large: float | None, pair: Pair) -> float:
    if not small or large is None:
        raise BenchmarkError(f"{pair.name} was not measured")
    return (large / pair.large.pods) / (small / pair.small.pods)


if __name__ == "__main__":
    sys.exit(main())
