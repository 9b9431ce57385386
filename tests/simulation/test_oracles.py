"""The simulation finds what it is there for: each planted bug, within so many schedules."""

from collections.abc import Callable

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.engine.invariants import InvariantError
from tests.simulation.engine.search_settings import SETTINGS
from tests.simulation.engine.state_machine import Schedule
from tests.simulation.engine.two_operators import TwoOperators
from tests.simulation.mutants import MUTANTS, MUTANTS_OF_PAIRS, Planted, planted

BOUND = 3000
"""Schedules within which each has to be found. How many it took is printed with `-s`."""
BOUND_OF_PAIRS = 300


def hunt(mutant: Callable[[], Planted], machine: type[Schedule], bound: int) -> None:
    seed(1)(machine)
    with planted(mutant), pytest.raises(InvariantError) as broken:
        run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=bound, phases=[Phase.generate]))
    assert "traceback" not in str(broken.value), "the mutant itself is broken"
    print(f"\n{mutant.__name__}: {str(broken.value)[:150]} (after {machine.finished} schedules)")  # noqa: T201


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_found(mutant: Callable[[], Planted]) -> None:
    class Hunt(Schedule):
        finished = 0

    hunt(mutant, Hunt, BOUND)


@pytest.mark.parametrize("mutant", MUTANTS_OF_PAIRS, ids=lambda mutant: mutant.__name__)
def test_a_bug_in_the_election_is_found(mutant: Callable[[], Planted]) -> None:
    class Hunt(TwoOperators):
        finished = 0

    hunt(mutant, Hunt, BOUND_OF_PAIRS)
