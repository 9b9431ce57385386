"""The mistakes that can be planted: for each node of a syntax tree, what may replace it. Pure."""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from typing_extensions import override

BOUNDARY_AND_OPPOSITE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COUNTERPARTS = {"max": "min", "min": "max", "any": "all", "all": "any"}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
EMPTY: dict[type[ast.expr], str] = {
    ast.List: "[]",
    ast.ListComp: "[]",
    ast.Tuple: "()",
    ast.Dict: "{}",
    ast.DictComp: "{}",
    ast.Set: "set()",
    ast.SetComp: "set()",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A replacement for one node. Lines are counted from 1, columns from 0 in bytes of UTF-8, as `ast` does."""

    operator: str
    function: str
    """The qualified name of the function or class around it; empty on the level of the module."""
    runs_at_import: bool
    line: int
    column: int
    end_line: int
    end_column: int
    replacement: str


def changes(tree: ast.Module) -> list[Change]:
    """Return every change of a module, in the order of its source.

    Text, annotations, decorators and log calls stay as they are: what they change is no behaviour of ours.
    """
    visitor = _Visitor()
    visitor.visit(tree)
    return visitor.found


class _Visitor(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[Change] = []
        self.names: list[str] = []
        self.depth = 0  # of function bodies

    @override
    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.expr | ast.stmt):
            for operator, target, replacement in _replacements(node):
                self._add(operator, target, replacement)
        super().visit(node)

    def _add(self, operator: str, node: ast.expr | ast.stmt, replacement: str) -> None:
        if node.end_lineno is None or node.end_col_offset is None:
            return
        place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        self.found.append(Change(operator, ".".join(self.names), not self.depth, *place, replacement))

    @override
    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        self.names.append(node.name)
        self.depth += 1
        for statement in node.body:
            self.visit(statement)
        self.depth -= 1
        self.names.pop()

    @override
    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    @override
    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()

    @override
    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    @override
    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    @override
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave text alone; before Python 3.12 the positions in it are wrong, too."""


Replacement = tuple[str, ast.expr | ast.stmt, str]
"""Operator, the node to replace, and its new source."""


def _replacements(node: ast.expr | ast.stmt) -> Iterator[Replacement]:
    for kind, replace in REPLACERS.items():
        if isinstance(node, kind):
            yield from replace(node)
    test = getattr(node, "test", None)
    if isinstance(node, ast.If | ast.While | ast.IfExp) and _needs_negation(test):
        yield "condition negated", node.test, f"not ({ast.unparse(node.test)})"
    for generator in getattr(node, "generators", []):
        for condition in filter(_needs_negation, generator.ifs):
            yield "condition negated", condition, f"not ({ast.unparse(condition)})"


def _needs_negation(test: ast.expr | None) -> bool:
    """Whether no other operator negates this condition already."""
    single = isinstance(test, ast.Compare) and len(test.ops) == 1
    constant = isinstance(test, ast.Constant)
    return test is not None and not (
        single or constant or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
    )


def _compare(node: ast.Compare) -> Iterator[Replacement]:
    for place, operator in enumerate(node.ops):
        for other in BOUNDARY_AND_OPPOSITE[type(operator)]:
            changed = copy.copy(node)
            changed.ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
            yield "comparison", node, ast.unparse(changed)


def _bool_op(node: ast.BoolOp) -> Iterator[Replacement]:
    swapped = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    yield "and/or", node, ast.unparse(swapped)
    for place in range(len(node.values)):
        left = [value for number, value in enumerate(node.values) if number != place]
        yield "operand dropped", node, ast.unparse(left[0] if len(left) == 1 else ast.BoolOp(node.op, left))


def _unary_op(node: ast.UnaryOp) -> Iterator[Replacement]:
    if isinstance(node.op, ast.Not):
        yield "not removed", node, ast.unparse(node.operand)
    elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield "minus removed", node, ast.unparse(node.operand)


def _constant(node: ast.Constant) -> Iterator[Replacement]:
    if isinstance(node.value, bool):
        yield "constant", node, str(not node.value)
    elif isinstance(node.value, int | float):
        yield "constant", node, repr(node.value + 1)
        yield "constant", node, repr(node.value - 1)


def _bin_op(node: ast.BinOp) -> Iterator[Replacement]:
    is_text = any(
        isinstance(side, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
    if type(node.op) in ARITHMETIC and not is_text:
        yield "arithmetic", node, ast.unparse(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))


def _aug_assign(node: ast.AugAssign) -> Iterator[Replacement]:
    if type(node.op) in ARITHMETIC:
        yield "arithmetic", node, ast.unparse(ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value))


def _call(node: ast.Call) -> Iterator[Replacement]:
    if not (isinstance(node.func, ast.Name) and node.func.id in COUNTERPARTS):
        return
    changed = copy.copy(node)
    changed.func = ast.Name(COUNTERPARTS[node.func.id])
    yield f"{node.func.id} swapped", node, ast.unparse(changed)
    if len(node.args) == 2 and not node.keywords:
        for argument in node.args:
            if not isinstance(argument, ast.Starred):
                yield f"{node.func.id} dropped", node, ast.unparse(argument)


def _return(node: ast.Return) -> Iterator[Replacement]:
    value = node.value
    if value is None or (isinstance(value, ast.Constant) and value.value is None):
        return
    if type(value) in EMPTY and ast.unparse(value) != EMPTY[type(value)]:
        yield "returned empty", value, EMPTY[type(value)]
    yield "returned None", value, "None"


def _statement(node: ast.Expr) -> Iterator[Replacement]:
    call = node.value.value if isinstance(node.value, ast.Await) else node.value
    if isinstance(call, ast.Call) and getattr(call.func, "attr", "") not in LOG_METHODS:
        yield "call dropped", node, "pass"


REPLACERS: dict[type[ast.AST], Callable[..., Iterator[Replacement]]] = {
    ast.Compare: _compare,
    ast.BoolOp: _bool_op,
    ast.UnaryOp: _unary_op,
    ast.Constant: _constant,
    ast.BinOp: _bin_op,
    ast.AugAssign: _aug_assign,
    ast.Call: _call,
    ast.Return: _return,
    ast.Expr: _statement,
}
