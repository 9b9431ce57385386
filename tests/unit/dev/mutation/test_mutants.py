import ast
from dataclasses import replace

from dev.mutation.mutants import Module, Mutant, choose, mutants

SOURCE = "def fits(free, size):\n    return free >= size and not (free == 0 or\n        size == 0)\n"
MODULE = Module("pkg", "pkg.fit", "pkg/fit.py", SOURCE)


def only(operator: str, module: Module = MODULE) -> list[Mutant]:
    return [mutant for mutant in mutants(module) if mutant.change.operator == operator]


def test_every_mutant_is_a_different_program() -> None:
    for mutant in mutants(MODULE):
        assert ast.dump(ast.parse(mutant.source())) != ast.dump(ast.parse(SOURCE))


def test_the_diff_shows_the_changed_line() -> None:
    boundary = only("comparison")[0]
    assert "-    return free >= size and not (free == 0 or" in boundary.diff()
    assert "+    return free > size and not (free == 0 or" in boundary.diff()
    assert boundary.where == "pkg/fit.py:2"


def test_a_removed_not_keeps_its_operands_together() -> None:
    [mutant] = only("not removed", replace(MODULE, source="x = a and not (b or c)\n"))
    assert ast.dump(ast.parse(mutant.source())) == ast.dump(ast.parse("x = a and (b or c)\n"))


def test_lines_before_and_after_have_single_spaces() -> None:
    mutant = only("not removed")[0]
    before, after = mutant.before_and_after()
    assert before == "return free >= size and not (free == 0 or size == 0)"
    assert after == "return free >= size and (free == 0 or size == 0)"


def test_one_seed_gives_one_choice() -> None:
    found = mutants(MODULE)
    assert choose(found, 5, seed=1) == choose(found, 5, seed=1)
    assert any(choose(found, 5, seed=1) != choose(found, 5, seed=seed) for seed in range(2, 6))


def test_the_choice_survives_moved_files() -> None:
    moved = replace(MODULE, path="pkg/room/fit.py", name="pkg.room.fit", source="import os\n\n" + SOURCE)
    before = [mutant.change.replacement for mutant in choose(mutants(MODULE), 5, seed=1)]
    assert [mutant.change.replacement for mutant in choose(mutants(moved), 5, seed=1)] == before
