"""All plans: which fault strikes where in which scenario. A plan is identified by its name, `scenario/fault/number`."""

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pytest
from typing_extensions import override

from tests.chaos import faults, stage_faults
from tests.chaos.scenario_run import ScenarioFault
from tests.chaos.scenarios import SCENARIOS, Scenario

Kinds = Mapping[str, Callable[[int], ScenarioFault]]

AT_WRITES: Final[Kinds] = {
    "kill-before": faults.KillBefore,
    "kill-after": faults.KillAfter,
    "lose-answer": faults.LoseAnswer,
    "lose-request": faults.LoseRequest,
    "false-error": faults.FalseError,
}
RARE: Final[Kinds] = {"depose": faults.Depose, "stall": stage_faults.Stall}
"""What takes longer: two operators with a Lease of three seconds between them; a dead connection, noticed after a
minute."""
AT_EVENTS: Final[Kinds] = {
    "hide": faults.Hide,
    "close": faults.Close,
    "refuse": faults.Refuse,
    "repeat": faults.Repeat,
    "merge": faults.Merge,
}
AT_STAGES: Final[Kinds] = {
    "absent": stage_faults.Absent,
    "leave": stage_faults.Leave,
    "overload": stage_faults.Overload,
    "breakdown": stage_faults.Breakdown,
    "restart": stage_faults.Restart,
    "crash": stage_faults.Crash,
    "stale": stage_faults.Stale,
    "lag": stage_faults.Lag,
}
SAMPLE: Final = (
    *("complete/kill-before/2", "fail/kill-after/7", "recreate/kill-after/6", "exhaust/kill-after/15"),
    *("evict/lose-answer/9", "suspend/lose-request/8", "resize/false-error/9"),
    *("fail/depose/8", "fail/hide/14", "suspend/close/20", "resize/refuse/16", "delete/repeat/12", "evict/merge/13"),
    *("fail/absent/2", "suspend/leave/3", "complete/overload/1", "resize/breakdown/2"),
    *("delete/restart/2", "exhaust/crash/2", "fail/stale/3", "recreate/lag/3"),
)
"""Each kind of fault and each story at least once: what `make test` plays."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One story with one fault."""

    scenario_name: str
    fault: str
    number: int
    make: Callable[[int], ScenarioFault]

    @override
    def __str__(self) -> str:
        return f"{self.scenario_name}/{self.fault}/{self.number}"

    @property
    def scenario(self) -> Scenario:
        return SCENARIOS[self.scenario_name]


def every() -> Iterator[Plan]:
    """Each kind of fault at each write and stage, and one kind at each event, in turns."""
    for turn, (scenario_name, scenario) in enumerate(SCENARIOS.items()):
        for kinds, count in ((AT_WRITES, scenario.writes), (AT_STAGES, scenario.stages)):
            for number in range(1, count + 1):
                yield from (Plan(scenario_name, fault, number, make) for fault, make in kinds.items())
        for number in range(1, scenario.events + 1):
            fault = [*AT_EVENTS][(number + turn) % len(AT_EVENTS)]
            yield Plan(scenario_name, fault, number, AT_EVENTS[fault])
        if scenario_name in {"fail", "suspend"}:
            yield from (
                Plan(scenario_name, "depose", number, faults.Depose) for number in range(1, scenario.writes + 1)
            )
        yield Plan(scenario_name, "stall", 2, stage_faults.Stall)


def chosen(pattern: str | None) -> list[Plan]:
    """The plans whose names match the pattern; without one, the sample."""
    plans = {str(plan): plan for plan in every()}
    if pattern is None:
        return [plans[name] if name in plans else named(name) for name in SAMPLE]
    found = [plan for name, plan in plans.items() if fnmatch.fnmatchcase(name, pattern)]
    return found or [named(pattern)]


def named(name: str) -> Plan:
    """A plan by its name, also one that is not among all of them. Raises `pytest.UsageError` where there can be none
    of this name.
    """
    kinds = {**AT_WRITES, **AT_EVENTS, **AT_STAGES, **RARE}
    scenario_name, _, rest = name.partition("/")
    fault, _, number = rest.partition("/")
    if scenario_name not in SCENARIOS or fault not in kinds or not number.isdecimal():
        raise pytest.UsageError(
            f"PLAN={name} is no plan: it is story/fault/number, of the stories {', '.join(SCENARIOS)} and the faults {', '.join(kinds)}"
        )
    return Plan(scenario_name, fault, int(number), kinds[fault])
