"""The names that a Python module binds, and public names in strings and in YAML, split into words. Pure."""

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import yaml

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


def split(name: str) -> list[str]:
    """Return the words of a name in snake_case or CamelCase, in lower case."""
    return [part.lower() for part in PARTS.findall(name)]


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of what a module binds: functions, classes, parameters, attributes, variables, aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield node.lineno, name
            case _:
                pass


def in_strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that is a name of several words: a reason, a field, a metric, a variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_name(node.value):
            yield node.lineno, node.value


def in_yaml(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each key and value that is a name of several words: a field, an alert, a value of the chart."""
    try:
        tokens = list(yaml.scan(source, Loader=yaml.SafeLoader))
    except yaml.YAMLError:
        return  # a template
    for token in tokens:
        if isinstance(token, yaml.ScalarToken) and is_name(token.value):
            yield token.start_mark.line + 1, token.value


def is_name(text: str) -> bool:
    """Return whether a text is a name of several words, in snake_case or CamelCase."""
    return NAME.fullmatch(text) is not None and len(split(text)) > 1


def of_module(path: str) -> list[str]:
    """Return the names that a module's path consists of."""
    return list(PurePosixPath(path).with_suffix("").parts)


def test_functions(tree: ast.AST) -> Iterator[tuple[int, str, int]]:
    """Yield line, name, and number of words after `test_` of each test function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name, len(node.name.removeprefix("test_").split("_"))


def imported_tests(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each test module that is imported: a module whose name begins with `test_`."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("tests.") and name.split(".")[-1].startswith("test_"):
                yield getattr(node, "lineno", 1), name
