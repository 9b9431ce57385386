"""Follow the calls of `domain/` from one function, as a reader does who wants to know what becomes of a snapshot."""

import ast
from collections.abc import Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

PARTS = frozenset(
    {"Snapshot", "JobView", "PodView", "TrainingJobSpec", "TrainingJobStatus", "AgentView", "WorkerReport"}
    | {"Exit", "RankProgress", "GroupSize", "MergedReports"}
)
"""The types of a snapshot, of its parts, and of what holds a snapshot."""

Place = tuple[str, str]
"""A module and the name of a function in it."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The functions and the tables of a package, and the names that each module imports."""

    functions: Mapping[Place, ast.FunctionDef]
    tables: Mapping[Place, ast.expr]
    """The values of the constants, which may name functions."""
    imported: Mapping[str, Mapping[str, Place]]

    @classmethod
    def of(cls, root: Path, package: str) -> "Sources":
        """Parse all modules below `root`, which is the folder that holds the package `package`."""
        functions: dict[Place, ast.FunctionDef] = {}
        tables: dict[Place, ast.expr] = {}
        imported: dict[str, dict[str, Place]] = {}
        for path in (root / package.replace(".", "/")).rglob("*.py"):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            tree = ast.parse(path.read_text())
            functions |= {(module, node.name): node for node in tree.body if isinstance(node, ast.FunctionDef)}
            constants = (node for node in tree.body if isinstance(node, ast.AnnAssign) and node.value)
            tables |= {(module, ast.unparse(node.target)): node.value for node in constants if node.value}
            imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)
            imported[module] = {
                name.asname or name.name: (str(node.module), name.name) for node in imports for name in node.names
            }
        return cls(functions, tables, imported)

    def calls(self, caller: Place) -> Iterator[Place]:
        """Yield the functions that `caller` calls or passes on, in the order in which they run."""
        function = self.functions[caller]
        names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
        variables = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        for statement in function.body:
            yield from self._named(caller[0], statement, variables)

    def takes_part(self, place: Place) -> bool:
        """Return whether the function takes a snapshot or a part of it."""
        arguments = self.functions[place].args
        given = [each.annotation for each in (*arguments.args, *arguments.kwonlyargs) if each.annotation]
        return any(isinstance(n, ast.Name) and n.id in PARTS for each in given for n in ast.walk(each))

    def _named(self, module: str, node: ast.AST, variables: AbstractSet[str]) -> Iterator[Place]:
        # Arguments are evaluated before the call.
        children = list(ast.iter_child_nodes(node))
        for child in [*children[1:], *children[:1]] if isinstance(node, ast.Call) else children:
            yield from self._named(module, child, variables)
        place: Place = ("", "")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            place = (".".join(self.imported[module].get(node.value.id, ("", ""))), node.attr)
        elif isinstance(node, ast.Name) and node.id not in variables:
            place = self.imported[module].get(node.id, (module, node.id))
        if place in self.tables:
            yield from self._named(place[0], self.tables[place], frozenset())
        elif place in self.functions:
            yield place


@dataclass(slots=True)
class CodeWalk:
    """A walk that follows each function once, where it is called first."""

    sources: Sources
    skipped: AbstractSet[str] = frozenset()
    """Names of functions that are not followed."""
    files: list[str] = field(default_factory=list)
    """The modules in the order of the first visit."""
    returns: list[Place] = field(default_factory=list)
    """The functions in which the reader came back to a module that was left."""
    _followed: set[Place] = field(default_factory=set)
    _now: str = ""

    def follow(self, place: Place) -> None:
        """Read the function, and what it calls."""
        self._followed.add(place)
        self._go_to(place)
        for called in self.sources.calls(place):
            if called in self._followed or called[1] in self.skipped or not self.sources.takes_part(called):
                continue
            self.follow(called)
            self._go_to(place)

    def _go_to(self, place: Place) -> None:
        if place[0] == self._now:
            return
        if place[0] in self.files:
            self.returns.append(place)
        else:
            self.files.append(place[0])
        self._now = place[0]
