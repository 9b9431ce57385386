"""The mutation run: measure, choose, and try each mutant on ever more tests until one fails."""

import hashlib
import heapq
import os
import pickle
import signal
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
KILLING_EXIT_CODES = {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR}
"""A test failed, a test file could not be imported, or a conftest could not."""
ENVIRONMENT = {"HYPOTHESIS_PROFILE": "ci", "PYTHONDONTWRITEBYTECODE": "1", "SIMULATION_SCHEDULES": "40"}


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


@dataclass(slots=True)
class _Running:
    task: _Task
    child: Child
    limits: Limits
    failure: Path
    """Where the child writes the first test that fails."""


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
    with tempfile.TemporaryDirectory() as folder:
        pool = _Pool(project, reach, Path(folder), note)
        for number, result in enumerate(results):
            pool.add(_Task((0, number), result, Stage.OWN))
        try:
            pool.work(jobs)
        finally:
            pool.stop()
    if _digest(project) != before:
        raise RunError("sources or tests changed during the run, so its results are of no use: run it again")
    return results


class _Pool:
    """Children that run the tests of tasks, and the tasks that wait for one."""

    def __init__(self, project: Project, reach: Reach, folder: Path, note: Callable[[Result], None]) -> None:
        self.project = project
        self.reach = reach
        self.folder = folder
        self.note = note
        self.waiting: list[_Task] = []
        self.running: list[_Running] = []
        self.started = 0

    def add(self, task: _Task) -> None:
        """Queue a task. Early stages come first, as most mutants are killed there."""
        heapq.heappush(self.waiting, task)

    def work(self, jobs: int) -> None:
        """Run all tasks, and those that follow from them."""
        while self.waiting or self.running:
            while self.waiting and len(self.running) < jobs:
                self._start(heapq.heappop(self.waiting))
            time.sleep(processes.POLL_SECONDS)
            for entry in list(self.running):
                code = processes.finished(entry.child, entry.limits)
                if code is not None:
                    self.running.remove(entry)
                    self._conclude(entry, code)

    def stop(self) -> None:
        """Kill the children that are left: the run was interrupted."""
        for entry in self.running:
            os.killpg(entry.child.pid, signal.SIGKILL)
            processes.wait(entry.child)

    def _start(self, task: _Task) -> None:
        """Start the task's tests, or go on to the next stage where there are none."""
        targets, seconds = self._targets(task)
        if not targets:
            self._survived(task)
            return
        self.started += 1
        failure = self.folder / f"failure-{self.started}"
        limits = Limits(processor_seconds=20 + 5 * seconds, wall_seconds=60 + 10 * seconds)
        arguments = [*QUIET, "-x", *targets]
        root, mutant = self.project.root, task.result.mutant
        child = processes.fork(lambda: processes.test(root, mutant, arguments, ENVIRONMENT, failure), limits)
        self.running.append(_Running(task, child, limits, failure))

    def _targets(self, task: _Task) -> tuple[list[str], float]:
        """Return the arguments that name a task's tests, and how many seconds they take."""
        if task.stage is Stage.SIMULATION:
            return list(self.project.simulation), self.project.simulation_seconds
        mutant, own = task.result.mutant, task.stage is Stage.OWN
        files = [file for file in self.reach.files(mutant) if self.project.own(mutant, file) == own]
        return files, sum(self.reach.seconds.get(file, 0.0) for file in files)

    def _conclude(self, entry: _Running, code: int) -> None:
        result = entry.task.result
        if code == 0:
            self._survived(entry.task)
        elif code > 0 and code not in KILLING_EXIT_CODES:
            raise RunError(f"pytest exited with {code} for {result.mutant.where} in its {entry.task.stage}")
        else:
            result.killed_in = entry.task.stage
            result.killer = entry.failure.read_text() if entry.failure.exists() else _reason(code)
            self.note(result)

    def _survived(self, task: _Task) -> None:
        stages = list(Stage)
        place = stages.index(task.stage) + 1
        if place < len(stages):
            self.add(_Task((place, task.priority[1]), task.result, stages[place]))
        else:
            self.note(task.result)


def _digest(project: Project) -> str:
    """Return a digest of the sources that the children import."""
    digest = hashlib.sha256()
    for folder in [*project.packages, *project.tests]:
        for path in sorted((project.root / folder).rglob("*.py")):
            digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _reason(code: int) -> str:
    return f"stopped at its limit (signal {-code})" if code < 0 else f"pytest exited with {code}"


def survivors(results: Iterable[Result]) -> Iterator[Result]:
    """Return the results of the mutants that no test has noticed."""
    return (result for result in results if result.killed_in is None)
