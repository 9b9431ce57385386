"""The whole operator under random faults: tens of thousands of schedules in `make test`, a million in `make test-long`.

A failure prints the steps that lead to it and the command that repeats them.
"""

import os
import random

import pytest
from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.engine.invariants import described
from tests.simulation.engine.network_faults import Fault
from tests.simulation.engine.search_settings import SETTINGS
from tests.simulation.engine.state_machine import Schedule
from tests.simulation.engine.two_operators import TwoOperators

WANTED = int(os.environ.get("SIMULATION_SCHEDULES", "8000"))
FIRST = int(os.environ.get("SIMULATION_SEED", "1"))
BATCH = min(WANTED, 1000)
PAIRS = min(WANTED, 250)
"""Schedules with two operators take several times as long; there is one for twenty of the others."""


def run_all(machine: type[Schedule], number: int, count: int) -> None:
    """So many schedules, which follow from the number. Adds to an error how to have it again."""
    seed(number)(machine)
    try:
        run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=count))
    except Exception as error:
        what = f"SIMULATION_SEED={number} SIMULATION_SCHEDULES={BATCH}"
        hashes = os.environ.get("PYTHONHASHSEED", "?")
        error.add_note(f"again: PYTHONHASHSEED={hashes} {what} pytest tests/simulation/test_engine.py")
        raise
    assert machine.finished >= count, "fewer schedules were run than were asked for"


@pytest.mark.parametrize("number", range(FIRST, FIRST + -(-WANTED // BATCH)))
def test_invariants_hold_in_every_schedule(number: int) -> None:
    class Batch(Schedule):
        finished = 0

    run_all(Batch, number, BATCH)


def test_same_steps_give_same_history() -> None:
    """Without that no failure could be repeated: nothing may depend on a real clock, on threads, or on chance of its own."""

    def run() -> str:
        random.seed(0)  # the back-off's jitter; hypothesis does the same
        schedule = Schedule()
        schedule.the_world_begins(seed=7, replicas=3, lifecycle="plain")
        schedule.requests_go_wrong(0.2, Fault.ANSWER_LOST, "POST pods", 1, 2)
        schedule.watch_lags(1.0, "pods", 3.0)
        schedule.worker_fails(4.0, 1, 1, "", with_others=True)
        schedule.operator_dies(35.0, 0, 17, 5, 1.0)
        schedule.user_scales(35.0, 0, 2)
        assert schedule.world is not None
        history = described(schedule.world.laws.history)
        schedule.teardown()
        return history

    assert run() == run()


@pytest.mark.parametrize("number", range(FIRST, FIRST + max(1, WANTED // 20 // PAIRS)))
def test_only_the_leader_of_two_writes(number: int) -> None:
    class Batch(TwoOperators):
        finished = 0

    run_all(Batch, number, PAIRS)
