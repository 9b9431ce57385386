"""Mutants of modules: found, chosen by a seed, and written out as source and diff. Nothing is written to disk."""

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.mutation.operators import Change, changes


@dataclass(frozen=True, slots=True)
class Module:
    """A module under test: its name, its path below the root of the project, its source."""

    package: str
    """The folder that it is counted under, below the root."""
    name: str
    path: str
    source: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change in it."""

    module: Module
    change: Change

    @property
    def lines(self) -> range:
        """The lines that the change replaces."""
        return range(self.change.line, self.change.end_line + 1)

    @property
    def where(self) -> str:
        """The position as an editor takes it: path:line."""
        return f"{self.module.path}:{self.change.line}"

    def source(self) -> str:
        """Return the module's source with the change, in brackets where its neighbours would else take it apart."""
        plain = self._with(self.change.replacement)
        wrapped = self._with(f"({self.change.replacement})")
        if not _parses(wrapped):
            return plain  # a statement
        return plain if _parses(plain) and ast.dump(ast.parse(plain)) == ast.dump(ast.parse(wrapped)) else wrapped

    def _with(self, replacement: str) -> str:
        lines = self.module.source.encode().splitlines(keepends=True)
        change = self.change
        head = lines[change.line - 1][: change.column]
        tail = lines[change.end_line - 1][change.end_column :]
        changed = [*lines[: change.line - 1], head + replacement.encode() + tail, *lines[change.end_line :]]
        return b"".join(changed).decode()

    def before_and_after(self) -> tuple[str, str]:
        """Return the changed lines before and after, with single spaces: how an accepted survivor is recognised."""
        before = self.module.source.splitlines()
        after = self.source().splitlines()
        rest = len(before) - self.change.end_line
        old, new = before[self.change.line - 1 : self.change.end_line], after[self.change.line - 1 : len(after) - rest]
        return " ".join(" ".join(old).split()), " ".join(" ".join(new).split())

    def diff(self) -> str:
        """Return a unified diff with two lines around the change."""
        path, before, after = self.module.path, self.module.source.splitlines(), self.source().splitlines()
        return "\n".join(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", n=2, lineterm=""))


def modules(root: Path, package: str, import_roots: Iterable[str]) -> list[Module]:
    """Return the modules of a package, a folder below the root."""
    found = []
    base = max((r for r in import_roots if _is_below(package, r)), key=len, default=".")
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root / base).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(package, name, str(path.relative_to(root)), path.read_text()))
    return found


def mutants(module: Module) -> list[Mutant]:
    """Return all mutants of a module."""
    return [Mutant(module, change) for change in changes(ast.parse(module.source))]


def choose(found: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return the `count` mutants of the lowest rank, in the order of their source.

    A rank follows from the seed, the function and the change, not from file or line. An edit elsewhere, or a file that
    moves, leaves the choice as it is.
    """
    seen: Counter[str] = Counter()
    ranked = []
    for place, mutant in enumerate(found):
        change = mutant.change
        key = f"{change.function}|{change.operator}|{_segment(mutant)}|{change.replacement}"
        seen[key] += 1
        rank = hashlib.sha256(f"{seed}|{key}|{seen[key]}".encode()).hexdigest()
        ranked.append((rank, place, mutant))
    chosen = sorted(ranked, key=lambda entry: entry[0])[:count]
    return [mutant for _, _, mutant in sorted(chosen, key=lambda entry: entry[1])]


def _segment(mutant: Mutant) -> str:
    lines = mutant.module.source.encode().splitlines(keepends=True)[mutant.change.line - 1 : mutant.change.end_line]
    if len(lines) == 1:
        return lines[0][mutant.change.column : mutant.change.end_column].decode()
    inner = [lines[0][mutant.change.column :], *lines[1:-1], lines[-1][: mutant.change.end_column]]
    return " ".join(b"".join(inner).decode().split())


def _is_below(package: str, folder: str) -> bool:
    return folder == "." or package.startswith(folder + "/")


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
