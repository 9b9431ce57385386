"""Every scenario reaches the same outcome, wherever a fault strikes, without violations on the way.

`make test-chaos` plays all plans, `make test-chaos PLAN='fail/lose-answer/7'` one, and `make test` the sample.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.plans import Plan, chosen
from tests.chaos.scenario_run import Counting, Result, run_scenario
from tests.chaos.scenarios import SCENARIOS
from tests.support.control_plane import ControlPlane

pytestmark = pytest.mark.chaos

PLANS = chosen(os.environ.get("PLAN"))


def undisturbed(runner: asyncio.Runner, plane: ControlPlane, folder: Path, scenario_name: str) -> dict[str, Any]:
    """Run the scenario without a fault. Return its outcome and length."""
    result = runner.run(run_scenario(plane, folder, SCENARIOS[scenario_name], Counting()))
    assert result.wrong == [], result.log
    return {"outcome": result.outcome, "writes": result.writes, "events": result.events}


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_scenario_with_fault_ends_as_without(
    plan: Plan, runner: asyncio.Runner, plane: ControlPlane, once: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    expected = once(plan.scenario_name, lambda: undisturbed(runner, plane, tmp_path, plan.scenario_name))["outcome"]
    fault = plan.make(plan.number)
    result = runner.run(run_scenario(plane, tmp_path, plan.scenario, fault, expected))
    assert result.wrong == [], report(plan, result)
    if not fault.struck:
        pytest.skip(f"{plan.fault} had no occasion: the story was over before")


def report(plan: Plan, result: Result) -> str:
    """Everything that is needed to understand a failure."""
    return "\n".join(
        [
            *(f"VIOLATION {plan}: {line[:500]}" for line in result.wrong),
            f"again: make test-chaos PLAN='{plan}'",
            "the operator's writes:",
            *result.writes,
            "what happened in the store:",
            *(line[:300] for line in result.history),
            "the operator's log:",
            result.log[-6000:],
        ]
    )
