"""Forked pytest runs: one warm process has imported every library, each child imports the project with one module changed."""

import importlib
import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest
from typing_extensions import override

from dev.mutation.mutants import Mutant

MEMORY_BYTES = 6 << 30
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may take before it counts as killed: an endless loop takes processor time, a lost wake-up does not."""

    processor_seconds: float
    wall_seconds: float


class _ChangedLoader(SourceFileLoader):
    """Loads a module from changed source; nothing is written, not even bytecode."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.changed = source

    @override
    def get_code(self, fullname: str) -> CodeType:
        return compile(self.changed, self.get_filename(fullname), "exec", dont_inherit=True)

    @override
    def get_source(self, fullname: str) -> str:
        return self.changed


@dataclass(frozen=True, slots=True)
class ChangedModule(importlib.abc.MetaPathFinder):
    """An import hook that gives one module another source."""

    name: str
    path: Path
    source: str

    @override
    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of the changed module, and None for all others."""
        if fullname != self.name:
            return None
        loader = _ChangedLoader(fullname, str(self.path), self.source)
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


def changed(root: Path, mutant: Mutant) -> ChangedModule:
    """Return the import hook of a mutant."""
    return ChangedModule(mutant.module.name, root / mutant.module.path, mutant.source())


def warm(names: Iterable[str]) -> None:
    """Import libraries ahead of all forks. What cannot be imported alone is left to the children."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 - a library's affair: the child imports it in its own order, or fails
            continue


class FirstFailure:
    """A plugin of pytest that notes the first test that fails."""

    def __init__(self, output: Path) -> None:
        self.output = output

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the failed test."""
        if report.failed and not self.output.exists():
            self.output.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note the file that cannot be imported."""
        if report.failed and not self.output.exists():
            self.output.write_text(report.nodeid)


@dataclass(slots=True)
class Child:
    """A forked process."""

    pid: int
    started: float = field(default_factory=time.monotonic)


def fork(work: Callable[[], int], limits: Limits | None = None, log: Path | None = None) -> Child:
    """Fork a process that does the work in a process group of its own, and exits with its result."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        with suppress(OSError):  # the child has done it first
            os.setpgid(pid, pid)
        return Child(pid)
    code = 3
    try:
        os.setpgid(0, 0)
        if limits is not None:
            seconds = int(limits.processor_seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        target = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        code = work()
    except BaseException:  # noqa: BLE001 - a child must never return into the parent's loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def finished(child: Child, limits: Limits | None = None) -> int | None:
    """Return a child's exit code, None while it runs, and minus the signal where it was killed, by its limits or else."""
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if not pid:
        if limits is None or time.monotonic() - child.started < limits.wall_seconds:
            return None
        os.killpg(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
    return os.waitstatus_to_exitcode(status)


def wait(child: Child) -> int:
    """Wait for a child without a limit."""
    _, status = os.waitpid(child.pid, 0)
    return os.waitstatus_to_exitcode(status)


def test(
    root: Path, mutant: Mutant | None, arguments: Sequence[str], environment: dict[str, str], failure: Path
) -> int:
    """Run pytest with a mutant in place of its module. To be called in a forked child."""
    os.chdir(root)
    os.environ.update(environment)
    if mutant is not None:
        sys.meta_path.insert(0, changed(root, mutant))
    return int(pytest.main(list(arguments), plugins=[FirstFailure(failure)]))
