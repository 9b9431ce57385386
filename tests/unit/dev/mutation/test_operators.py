import ast

import pytest

from dev.mutation.operators import changes


def replacements(source: str) -> list[str]:
    return [f"{change.operator}: {change.replacement}" for change in changes(ast.parse(source))]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a >= b", ["comparison: a > b", "comparison: a < b"]),
        ("a == b", ["comparison: a != b"]),
        ("a in b", ["comparison: a not in b"]),
        ("a and b", ["and/or: a or b", "operand dropped: b", "operand dropped: a"]),
        ("not a", ["not removed: a"]),
        ("x = 3", ["constant: 4", "constant: 2"]),
        ("x = True", ["constant: False"]),
        ("x = a + b", ["arithmetic: a - b"]),
        ("x += y", ["arithmetic: x -= y"]),
        ("x = max(a, b)", ["max swapped: min(a, b)", "max dropped: a", "max dropped: b"]),
        ("x = all(a)", ["all swapped: any(a)"]),
        ("queue.add(key)", ["call dropped: pass"]),
        ("x = a if b else c", ["condition negated: not (b)"]),
        ("x = [a for a in b if a.ready]", ["condition negated: not (a.ready)"]),
        ("def f():\n    return [a]", ["returned empty: []", "returned None: None"]),
    ],
)
def test_replacements_of_one_node(source: str, expected: list[str]) -> None:
    assert replacements(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "x: int | None = None",
        "log.info('started')",
        "x = f'{a + 1}'",
        "x = 'a' + b",
        "if TYPE_CHECKING:\n    x = 1",
        "@dataclass(frozen=True)\nclass A:\n    'Text.'",
    ],
)
def test_text_types_and_logs_stay(source: str) -> None:
    assert replacements(source) == []


def test_a_change_knows_its_function() -> None:
    [change] = changes(ast.parse("class A:\n    def f(self):\n        x = a in b"))
    assert (change.function, change.line, change.runs_at_import) == ("A.f", 3, False)


def test_a_constant_of_the_module_runs_at_import() -> None:
    assert all(change.runs_at_import for change in changes(ast.parse("LIMIT = 3")))
