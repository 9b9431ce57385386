"""The cases: how many jobs of how many workers are created at once, and what happens to them then."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

NAMESPACE: Final = "bench"
DEADLINE_SECONDS: Final = 300.0
"""A case that has not come to its end by then is given up, and says so in its note."""
IDLE_SECONDS: Final = 60.0
BASE_PODS: Final = 500
"""The workers of case a; the other cases grow and shrink with it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many jobs of so many workers each, created at once."""

    jobs: int
    workers: int

    @property
    def pods(self) -> int:
        """All workers of all jobs."""
        return self.jobs * self.workers

    def describe(self) -> str:
        """In words."""
        return f"{_many(self.jobs, 'job')} x {_many(self.workers, 'worker')}"

    def names(self) -> list[str]:
        """The jobs' names."""
        return [f"job-{number}" for number in range(self.jobs)]


@dataclass(frozen=True, slots=True)
class Outing:
    """What is done in the life of one operator process: a fleet is created, and something may happen to it afterwards."""

    case: str
    fleet: Fleet
    failure: str | None = None
    """The case in which one of the fleet's workers fails."""
    idle: str | None = None
    """The case in which the fleet is left alone."""

    @property
    def cases(self) -> list[str]:
        """All that are measured on it, in their order."""
        return [case for case in (self.case, self.failure, self.idle) if case]


CASES: Final = "abcdef"


def fleets(pods: int) -> dict[str, Fleet]:
    """What the cases create."""
    return {"a": Fleet(1, pods), "b": Fleet(max(1, pods // 5), 8), "c": Fleet(2 * pods, 1), "d": Fleet(1, 4 * pods)}


def titles(pods: int) -> dict[str, str]:
    """The cases in words."""
    return {
        **{case: fleet.describe() for case, fleet in fleets(pods).items()},
        "e": "a worker of (a) fails: until all run again",
        "f": f"the jobs of (c) left alone for {IDLE_SECONDS:.0f} s",
    }


def outings(cases: Collection[str], pods: int = BASE_PODS) -> list[Outing]:
    """What has to be done for these cases. (e) needs the pods of (a), and (f) the jobs of (c)."""
    all_of_them = [
        Outing(
            case,
            fleet,
            failure="e" if case == "a" and "e" in cases else None,
            idle="f" if case == "c" and "f" in cases else None,
        )
        for case, fleet in fleets(pods).items()
    ]
    return [outing for outing in all_of_them if set(outing.cases) & set(cases)]


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
