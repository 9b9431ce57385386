"""Run the import prefix of a program: what it imports before its own code can change what an import does. Runs in the program's own
interpreter, as a part of `forkserver_child.py`. It stops where it is not sure; the program itself imports the rest.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import importlib.util
import os
import sys
import time
import types
from typing import Any

SITES = ("site-packages", "dist-packages")
PLAIN = (
    *(ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.BinOp, ast.UnaryOp, ast.Subscript),
    *(ast.arguments, ast.arg, ast.operator, ast.unaryop, ast.expr_context),
)
"""What an expression may consist of. No attribute: some packages import a module when they are asked for one."""
PYTHON_NAMES = frozenset(
    f"__{name}__" for name in ("annotations", "builtins", "cached", "doc", "file", "loader", "name", "package", "spec")
)
"""What libraries may look for in `__main__`."""
CLOCKS = tuple(
    getattr(time, f"{clock}{unit}")
    for clock in ("monotonic", "perf_counter", "process_time", "time")
    for unit in ("", "_ns")
)
"""Programs read these before they import, to measure how long that takes."""


class PrefixEnd(Exception):  # noqa: N818 - no error
    """The prefix ends here."""


def files_of(module: bool, name: str) -> list[str]:  # noqa: FBT001 - a field of the work
    """Return what is run, in order: the packages around a module, then the program. Found without an import. Raises OSError."""
    if not module:
        return [name]
    parts = name.split(".")
    for folder in [os.getcwd(), *sys.path]:
        path = os.path.join(folder, *parts)
        for file, packages in ((f"{path}.py", parts[:-1]), (os.path.join(path, "__main__.py"), parts)):
            if os.path.isfile(file):
                around = [os.path.join(folder, *packages[: at + 1], "__init__.py") for at in range(len(packages))]
                return [*filter(os.path.isfile, around), file]
    raise OSError("its file is not found")


def run_prefix(files: list[str], folder: str) -> list[str]:
    """Do the imports. Returns the names of the installed modules among them.

    Raises whatever an import raises, but for a missing module: half a package may be imported then.
    """
    done: list[str] = []
    try:
        for file in files:
            with open(file, "rb") as opened:
                tree = ast.parse(opened.read())
            Prefix(folder, done).run(tree.body)
    except (PrefixEnd, ImportError):
        pass  # The program would fail with such an ImportError too.
    return done


class Prefix:
    """The prefix of one file. `folder`: where the program's own modules are."""

    def __init__(self, folder: str, done: list[str]) -> None:
        self._folder, self._done = folder, done
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, statements: list[Any]) -> None:
        """Raises PrefixEnd, ImportError, and what an import raises."""
        for each in statements:
            if isinstance(each, (ast.Assign, ast.AnnAssign)) and self._is_time(each.value):
                each.value = ast.Name("?")  # plain, and of no known value
            if isinstance(each, ast.Import):
                for name in each.names:
                    self._import(ast.copy_location(ast.Import([name]), each), name.name)
            elif isinstance(each, ast.ImportFrom) and each.level == 0 and each.module:
                self._import(each, each.module)
            elif isinstance(each, ast.Try):
                self._try(each)
            elif isinstance(each, ast.If):
                self.run(each.body if self._holds(each.test) else each.orelse)
            elif is_harmless(each):
                self._record(each)
            else:
                raise PrefixEnd

    def _import(self, node: ast.stmt, module: str) -> None:
        name = module.partition(".")[0]
        self._check(name)
        try:
            exec(compile(ast.Module([node], []), "<prefix>", "exec", dont_inherit=True), self._names)  # noqa: S102 - as the program does
        except ImportError as error:
            frames = error.__traceback__ and error.__traceback__.tb_next
            if frames and frames.tb_next:
                # Not missing: a module started to run, and failed.
                raise RuntimeError(f"{module}: {error}") from error
            raise
        if not is_standard(name):
            self._done.append(module)

    def _check(self, name: str) -> None:
        """Raises PrefixEnd, but for modules that are installed, in the standard library, or missing."""
        if is_module(self._folder, name):
            raise PrefixEnd
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:
            raise PrefixEnd from None
        if spec is None or name == "trainyard_agent" or is_standard(name):
            return
        paths = [spec.origin] if spec.origin else [*(spec.submodule_search_locations or ())]
        if not paths or not all(any(f"/{site}/" in path for site in SITES) for path in paths):
            raise PrefixEnd

    def _try(self, node: ast.Try) -> None:
        handlers = [(kinds_of(each.type), each.body) for each in node.handlers]
        try:
            self.run(node.body)
        except ImportError as error:
            caught = next((body for kinds, body in handlers if isinstance(error, kinds)), None)
            if caught is None:
                raise
            self.run(caught)
        else:
            self.run(node.orelse)
        self.run(node.finalbody)

    def _holds(self, test: ast.expr) -> bool:
        """Return whether a condition is true: a name of known value, such as TYPE_CHECKING. Raises PrefixEnd."""
        value: object = None
        if isinstance(test, ast.Name):
            value = self._names.get(test.id)
        elif isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name):
            module = self._names.get(test.value.id)
            value = vars(module).get(test.attr) if isinstance(module, types.ModuleType) else None
        if not isinstance(value, bool):
            raise PrefixEnd
        return value

    def _is_time(self, node: ast.expr | None) -> bool:
        """Return whether an expression reads a clock."""
        if not isinstance(node, ast.Call) or node.args or node.keywords:
            return False
        called: object = None
        if isinstance(node.func, ast.Name):
            called = self._names.get(node.func.id)
        elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            called = getattr(time, node.func.attr, None) if self._names.get(node.func.value.id) is time else None
        return called in CLOCKS

    def _record(self, node: Any) -> None:
        """Record the value of the names that a statement defines."""
        value = getattr(node, "value", None)
        for target in getattr(node, "targets", [getattr(node, "target", node)]):
            name = getattr(target, "id", None) or getattr(target, "name", None)
            if name:
                self._names[name] = value.value if isinstance(value, ast.Constant) else None


def is_harmless(node: Any) -> bool:
    """Return whether a statement cannot change what an import does."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return not node.decorator_list and is_plain(node.args) and is_plain(node.returns)
    if isinstance(node, ast.ClassDef):
        return not (node.decorator_list or node.bases or node.keywords) and all(map(is_harmless, node.body))
    if isinstance(node, ast.Assign):
        return all(map(is_program_name, node.targets)) and is_plain(node.value)
    if isinstance(node, ast.AnnAssign):
        return is_program_name(node.target) and is_plain(node.value) and is_plain(node.annotation)
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def is_program_name(target: ast.expr) -> bool:
    """Return whether an assignment's target is a name that only the program reads."""
    return isinstance(target, ast.Name) and target.id not in PYTHON_NAMES


def is_plain(node: ast.AST | None) -> bool:
    """Return whether an expression runs no other code."""
    return node is None or all(isinstance(each, PLAIN) for each in ast.walk(node))


def kinds_of(node: ast.expr | None) -> tuple[type[BaseException], ...]:
    """Return the exceptions that a handler catches. Raises PrefixEnd where they are not built in."""
    if node is None:
        return (BaseException,)
    names = [getattr(each, "id", "") for each in (node.elts if isinstance(node, ast.Tuple) else [node])]
    kinds = tuple(getattr(builtins, name, None) for name in names)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise PrefixEnd
    return kinds  # type: ignore[return-value]


def is_standard(name: str) -> bool:
    """Return whether a top-level module is in the standard library."""
    if name in sys.builtin_module_names:
        return True
    # Not by sys.path, which holds the program's folder.
    library = os.path.dirname(os.__file__)
    spec = importlib.machinery.PathFinder.find_spec(name, [library, os.path.join(library, "lib-dynload")])
    return spec is not None and spec.origin is not None


def is_module(folder: str, name: str) -> bool:
    """Return whether a folder has a module or package of that name."""
    spec = importlib.machinery.PathFinder.find_spec(name, [folder])
    return spec is not None and spec.origin is not None
