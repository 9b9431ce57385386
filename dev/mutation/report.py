"""The report of a mutation run: a table of packages, the survivors as diffs, and the accepted survivors with their reasons."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.mutation.mutants import Mutant
from dev.mutation.run import Result, Stage


class AcceptedError(Exception):
    """The file of accepted survivors cannot be used."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A survivor that changes nothing, with the reason why no test can notice it."""

    function: str
    before: str
    after: str
    reason: str

    def matches(self, mutant: Mutant) -> bool:
        """Whether this is the mutant. Files may move: the function and its changed lines decide."""
        return mutant.change.function == self.function and mutant.before_and_after() == (self.before, self.after)


def read_accepted(path: Path) -> list[Accepted]:
    """Return the accepted survivors of a TOML file; none where there is no file.

    Raises:
        AcceptedError: An entry has no reason, or other keys than it should.
    """
    if not path.exists():
        return []
    try:
        accepted = [Accepted(**entry) for entry in tomllib.loads(path.read_text()).get("accepted", [])]
    except TypeError as error:
        raise AcceptedError(f"{path}: each [[accepted]] has function, before, after and reason: {error}") from error
    for entry in accepted:
        if not entry.reason.strip():
            raise AcceptedError(f"{path}: the mutant of {entry.function} ({entry.after}) needs a reason")
    return accepted


def check_accepted(accepted: Sequence[Accepted], found: Sequence[Mutant]) -> None:
    """Check that each accepted survivor still exists.

    Raises:
        AcceptedError: An entry belongs to code that is gone.
    """
    for entry in accepted:
        if not any(entry.matches(mutant) for mutant in found if mutant.change.function == entry.function):
            raise AcceptedError(f"no mutant turns `{entry.before}` of {entry.function} into `{entry.after}`: remove it")


@dataclass(frozen=True, slots=True)
class Report:
    """The results, with what was accepted set apart."""

    results: Sequence[Result]
    accepted: Sequence[Accepted]

    def survivors(self) -> list[Result]:
        """Return the survivors without a reason."""
        return [result for result in self.results if result.killed_in is None and not self._is_accepted(result)]

    def share(self) -> float:
        """Return the killed share of all mutants that are not accepted, from 0 to 1."""
        return _share(self.results, self.accepted)

    def _is_accepted(self, result: Result) -> bool:
        return any(entry.matches(result.mutant) for entry in self.accepted)

    def table(self) -> str:
        """Return the table of packages, as Markdown."""
        heads = ["package", "mutants", *(f"killed by {stage}" for stage in Stage), "accepted", "survived", "killed"]
        packages = sorted({result.mutant.module.package for result in self.results})
        rows = [
            self._row(package, [r for r in self.results if r.mutant.module.package == package]) for package in packages
        ]
        if len(rows) > 1:
            rows.append(self._row("all", self.results))
        return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])

    def _row(self, name: str, results: Sequence[Result]) -> list[str]:
        killed = [sum(result.killed_in is stage for result in results) for stage in Stage]
        accepted = sum(result.killed_in is None and self._is_accepted(result) for result in results)
        left = len(results) - sum(killed) - accepted
        return [name, *map(str, [len(results), *killed, accepted, left]), f"{_share(results, self.accepted):.1%}"]

    def text(self) -> str:
        """Return the whole report: survivors first, the table last."""
        parts = []
        for result in self.survivors():
            mutant = result.mutant
            reach = "" if result.reached else " (no unit test runs this line)"
            place = mutant.change.function or mutant.module.name
            parts.append(f"survived: {mutant.where} {place}: {mutant.change.operator}{reach}\n{mutant.diff()}\n")
        return "\n".join([*parts, self.table()])


def _share(results: Iterable[Result], accepted: Sequence[Accepted]) -> float:
    counted = [r for r in results if r.killed_in is not None or not any(entry.matches(r.mutant) for entry in accepted)]
    return sum(result.killed_in is not None for result in counted) / len(counted) if counted else 1.0
