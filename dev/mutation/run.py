"""The mutation run: measure, choose, and try each mutant on ever more tests until one fails."""

import hashlib
import heapq
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from dev.mutation import processes
from dev.mutation.mutants import Mutant
from dev.mutation.processes import Child, Limits
from dev.mutation.reach import Reach, measure

QUIET = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
"""Libraries are imported before pytest could rewrite the asserts of their plugins: none of ours are among them."""
SIMULATION_SCHEDULES = 40
KILLING_EXIT_CODES = {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR}
"""A test failed, a test file could not be imported, or a conftest could not."""
ENVIRONMENT = {"HYPOTHESIS_PROFILE": "ci", "PYTHONDONTWRITEBYTECODE": "1"}


class Stage(StrEnum):
    """Which tests a mutant meets, in this order."""

    OWN = "own tests"
    OTHER = "other unit tests"
    SIMULATION = "simulation"


@dataclass(frozen=True, slots=True)
class Project:
    """What is mutated, and what tests it. Paths are below the root."""

    root: Path
    packages: Sequence[str]
    tests: Sequence[str]
    """Folders of unit tests. The one that has the name of a package holds the package's own tests."""
    simulation: Sequence[str] = ()
    """Arguments of pytest for a short simulation."""
    simulation_seconds: float = 120
    """Its processor time on an idle machine, at most."""

    def own(self, mutant: Mutant, file: str) -> bool:
        """Whether a test file is among the own tests of the mutant's package."""
        return Path(mutant.module.package).name in Path(file).parts[:-1]


@dataclass(slots=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    killed_in: Stage | None = None
    killer: str = ""
    reached: bool = True


@dataclass(order=True, slots=True)
class _Task:
    priority: tuple[int, int]
    result: Result = field(compare=False)
    stage: Stage = field(compare=False)


class BaselineError(Exception):
    """The tests fail without any mutant, so that their failure shows nothing."""


class RunError(Exception):
    """A run of tests was not possible, or the tree changed under it: its results count for nothing."""


def prepare(project: Project, folder: Path) -> Reach:
    """Measure what the tests reach, and import what they need but the project itself.

    Raises:
        BaselineError: The tests fail as they are.
    """
    output, log = folder / "reach", folder / "baseline.log"

    def work() -> int:
        os.chdir(project.root)
        os.environ.update(ENVIRONMENT)
        return measure(project.root, project.packages, [*QUIET, "-x", *project.tests], output)

    code = processes.wait(processes.fork(work, log=log))
    if code != 0 or not output.exists():
        raise BaselineError(f"the tests fail without a mutant (pytest exited with {code}):\n{log.read_text()[-3000:]}")
    reach: Reach = pickle.loads(output.read_bytes())  # noqa: S301 - written by our own child a moment ago
    processes.warm(reach.imported)
    return reach


def run(
    project: Project, reach: Reach, chosen: Iterable[Mutant], jobs: int, note: Callable[[Result], None]
) -> list[Result]:
    """Try all mutants, `jobs` at a time. Each that survives a stage goes on to the next one.

    Raises:
        RunError: Tests could not be run, or somebody changed the tree meanwhile.
    """
    before = _digest(project)
    results = [Result(mutant, reached=bool(reach.files(mutant))) for mutant in chosen]
    waiting = [_Task((0, number), result, Stage.OWN) for number, result in enumerate(results)]
    heapq.heapify(waiting)
    running: list[tuple[_Task, Child, Limits, Path]] = []
    with tempfile.TemporaryDirectory() as folder:
        counter = iter(range(1 << 62))
        while waiting or running:
            while waiting and len(running) < jobs:
                task = heapq.heappop(waiting)
                started = _start(project, reach, task, Path(folder) / f"failure-{next(counter)}")
                if started is not None:
                    running.append(started)
                else:
                    _advance(project, task, waiting, note)
            time.sleep(processes.POLL_SECONDS)
            for entry in list(running):
                task, child, limits, failure = entry
                code = processes.finished(child, limits)
                if code is None:
                    continue
                running.remove(entry)
                if code > 0 and code not in KILLING_EXIT_CODES:
                    raise RunError(f"pytest exited with {code} for {task.result.mutant.where} in its {task.stage}")
                if code == 0:
                    _advance(project, task, waiting, note)
                else:
                    task.result.killed_in = task.stage
                    task.result.killer = failure.read_text() if failure.exists() else _reason(code)
                    note(task.result)
    if _digest(project) != before:
        raise RunError("sources or tests changed during the run, so its results are of no use: run it again")
    return results


def _digest(project: Project) -> str:
    """Return a digest of the sources that the children import."""
    digest = hashlib.sha256()
    for folder in [*project.packages, *project.tests]:
        for path in sorted((project.root / folder).rglob("*.py")):
            digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _start(project: Project, reach: Reach, task: _Task, failure: Path) -> tuple[_Task, Child, Limits, Path] | None:
    """Start the task's tests; None where there are none."""
    mutant, environment = task.result.mutant, ENVIRONMENT
    if task.stage is Stage.SIMULATION:
        targets, seconds = list(project.simulation), project.simulation_seconds
        environment = {**ENVIRONMENT, "SIMULATION_SCHEDULES": str(SIMULATION_SCHEDULES)}
    else:
        own = task.stage is Stage.OWN
        targets = [file for file in reach.files(mutant) if project.own(mutant, file) == own]
        seconds = sum(reach.seconds.get(file, 0.0) for file in targets)
    if not targets:
        return None
    limits = Limits(processor_seconds=20 + 5 * seconds, wall_seconds=60 + 10 * seconds)
    arguments = [*QUIET, "-x", *targets]
    child = processes.fork(lambda: processes.test(project.root, mutant, arguments, environment, failure), limits)
    return task, child, limits, failure


def _advance(project: Project, task: _Task, waiting: list[_Task], note: Callable[[Result], None]) -> None:
    stages = list(Stage)
    place = stages.index(task.stage) + 1
    if place < len(stages) and (stages[place] is not Stage.SIMULATION or project.simulation):
        heapq.heappush(waiting, _Task((place, task.priority[1]), task.result, stages[place]))
    else:
        note(task.result)


def _reason(code: int) -> str:
    return f"stopped at its limit (signal {-code})" if code < 0 else f"pytest exited with {code}"


def survivors(results: Iterable[Result]) -> Iterator[Result]:
    """Return the results of the mutants that no test has noticed."""
    return (result for result in results if result.killed_in is None)
