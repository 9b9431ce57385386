"""Which test files reach which lines: measured once by coverage.py, with one context for each import and each test."""

import pickle
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

from dev.mutation.mutants import Mutant

IMPORT = "import:"
"""The context of what runs while a test file is imported, with that file's path."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What one run of the unmutated tests has shown."""

    exit_code: int
    contexts: dict[str, dict[int, set[str]]]
    """Path below the root, line, and the contexts (ids of tests, or imports) that have run the line."""
    seconds: dict[str, float]
    """Of each test file."""
    imported: list[str]
    """Modules that the tests have imported and that are no part of the project."""

    def files(self, mutant: Mutant) -> list[str]:
        """Return the test files that can notice a mutant, the fastest first.

        Code that runs at import is cached for all later tests of a process, so every file that uses the module counts.
        """
        lines = self.contexts.get(mutant.module.path, {})
        reached = {context for line in mutant.lines for context in lines.get(line, ())}
        if mutant.change.runs_at_import or any(context.startswith(IMPORT) for context in reached):
            reached = {context for contexts in lines.values() for context in contexts}
        return sorted({_file(context) for context in reached}, key=lambda file: (self.seconds.get(file, 0.0), file))


def _file(context: str) -> str:
    return context.removeprefix(IMPORT).split("::")[0]


class _Contexts:
    """A plugin of pytest that names what runs to coverage.py."""

    def __init__(self, cover: coverage.Coverage) -> None:
        self.cover = cover
        self.seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        if isinstance(collector, pytest.Module):
            self.cover.switch_context(IMPORT + collector.nodeid)
        started = time.perf_counter()
        report = yield
        self.seconds[_file(collector.nodeid)] += time.perf_counter() - started
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.cover.switch_context(item.nodeid)
        started = time.perf_counter()
        result = yield
        self.seconds[_file(item.nodeid)] += time.perf_counter() - started
        return result


def measure(root: Path, packages: Sequence[str], arguments: Sequence[str], output: Path) -> int:
    """Run pytest with coverage and write a pickled `Reach`. Runs in a process of its own."""
    cover = coverage.Coverage(data_file=None, source=[str(root / package) for package in packages], config_file=False)
    plugin = _Contexts(cover)
    cover.start()
    code = int(pytest.main([*arguments], plugins=[plugin]))
    cover.stop()
    data = cover.get_data()
    # Lines that run outside of any test or import, as pytest starts, have the empty context, which names no file.
    contexts = {
        str(Path(file).relative_to(root)): {
            line: {*names} - {""} for line, names in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    output.write_bytes(pickle.dumps(Reach(code, contexts, dict(plugin.seconds), _foreign_modules(root))))
    return code


def _foreign_modules(root: Path) -> list[str]:
    """Return the imported modules that are not the project's own: nothing that is mutated, and no test."""
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        own = file is None or (Path(file).is_relative_to(root) and not Path(file).is_relative_to(sys.prefix))
        if not own and not name.startswith("__") and getattr(module, "__spec__", None) is not None:
            found.append(name)
    return found
