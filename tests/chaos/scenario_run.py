"""Run one scenario with one fault, from an empty namespace until the operator is quiet, and collect what was wrong."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final

from typing_extensions import override

from tests.chaos.admin_client import JOBS, PODS, SERVICES, AdminClient
from tests.chaos.history import History, StuckError
from tests.chaos.invariants import orphans, violations
from tests.chaos.node_stand_in import NodeStandIn
from tests.chaos.operator_process import OperatorProcess
from tests.chaos.outcome import difference, outcome, step_log
from tests.chaos.proxy import Call, Event, Events, Fault, Proxy
from tests.chaos.scenario_context import ScenarioContext
from tests.chaos.scenarios import Scenario
from tests.support.control_plane import OPERATOR, ControlPlane

Json = dict[str, Any]

START_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 2.5
"""For this long the operator may write nothing once the final state is reached."""
OWN_WRITES: Final = {
    "POST": {"pods", "services"},
    "PUT": {"trainingjobs"},
    "PATCH": {"pods"},
    "DELETE": {"pods", "trainingjobs"},
}


@dataclass(slots=True)
class Stage:
    """Everything that a fault can act on."""

    plane: ControlPlane
    client: AdminClient
    history: History
    proxy: Proxy
    operators: Sequence[OperatorProcess]
    tasks: asyncio.TaskGroup

    def kill(self, who: str | None = None, *, away: float = 0.0, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill an operator: the named one, or the one that wrote last."""
        who = who or next((call.who for call in reversed(self.proxy.writes())), self.operators[0].name)
        next(operator for operator in self.operators if operator.name == who).kill(away=away, how=how)


class ScenarioFault(Fault):
    """A fault that also strikes at stages, and acts on more than the proxy."""

    stage: Stage
    settings: ClassVar[Mapping[str, str]] = {}
    """Settings of the operator that make the scenario faster."""
    replicas: ClassVar[int] = 1
    """The number of operators. One of several leads."""

    async def at_stage(self, number: int) -> None:
        """Called at each stage of the scenario, while nothing is in progress."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a scenario; `wrong` is empty where it passed."""

    outcome: Json
    wrong: list[str]
    writes: list[str] = field(default_factory=list)
    events: int = 0
    history: list[str] = field(default_factory=list)
    log: str = ""


class Counting(ScenarioFault):
    """No fault: counts the events at which plans can strike."""

    seen = 0

    @override
    async def stream(self, call: Call, events: Events) -> AsyncIterator[Event]:
        while (event := await events.get()) is not None:
            self.seen += event["type"] != "BOOKMARK"
            yield event


async def run_scenario(
    plane: ControlPlane, folder: Path, scenario: Scenario, fault: ScenarioFault, expected: Json | None = None
) -> Result:
    """Run the scenario. `expected` is its required outcome; None where this run determines it."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AdminClient(plane))
        history = await stack.enter_async_context(History(plane.storage))
        nodes = await stack.enter_async_context(NodeStandIn(client, history))
        proxy = await stack.enter_async_context(Proxy(plane, fault))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        operators = [await _operator(number, plane, proxy, folder, fault) for number in range(fault.replicas)]
        fault.stage = Stage(plane, client, history, proxy, operators, tasks)
        context = ScenarioContext(client, history, nodes, fault.at_stage)
        wrong: list[str] = []
        try:
            async with AsyncExitStack() as running:
                for operator in operators:
                    await running.enter_async_context(operator)
                await watching(proxy)
                await scenario.play(context)
                await _wait_until_quiet(history, proxy, expected)
        except StuckError as error:
            wrong.append(str(error))
        found = outcome(history)
        wrong += [] if expected is None else difference(expected, found)
        wrong += violations(history.steps, context.own_writes)
        wrong += orphans(history.jobs().values(), [*history.pods(), *history.now["service"].values()])
        wrong += _forbidden_writes(proxy, operators)
        logged = step_log(history.steps)
        await clean(client, history)
    seen = fault.seen if isinstance(fault, Counting) else 0
    writes = [f"{call.number}: {call} -> {call.status}" for call in proxy.writes()]
    log = "\n".join(operator.log.read_text(errors="replace") for operator in operators)
    return Result(found, wrong, writes, seen, logged, log)


async def _operator(
    number: int, plane: ControlPlane, proxy: Proxy, folder: Path, fault: ScenarioFault
) -> OperatorProcess:
    name = f"operator-{number}"
    kubeconfig = plane.kubeconfig(OPERATOR, await proxy.listen(name))
    return OperatorProcess(name, kubeconfig, folder / f"{name}.log", fault.settings)


async def watching(proxy: Proxy) -> None:
    """Wait until the operator has all its watches, so that each run starts from the same state."""
    deadline = time.monotonic() + START_SECONDS
    while {c.resource for c in proxy.calls if c.watch} < {"pods", "services", "trainingjobs"}:
        if time.monotonic() > deadline:
            raise StuckError(f"the operator did not come up: {[str(c) for c in proxy.calls]}")
        await asyncio.sleep(0.02)


async def _wait_until_quiet(history: History, proxy: Proxy, expected: Json | None) -> None:
    """Wait for the expected outcome, and then for a while longer: nothing more may be written."""
    if expected is not None:
        await history.until(lambda: outcome(history) == expected, "the end to be as without a fault", 60)
    before = len(proxy.writes())
    await asyncio.sleep(QUIET_SECONDS)
    late = proxy.writes()[before:]
    # One rejected write is allowed: the operator may still have seen the job in its cache.
    if expected is not None and (len(late) > 1 or any(call.status < 400 for call in late)):
        raise StuckError(f"all was as it must be, and the operator still wrote: {[str(call) for call in late]}")


def _forbidden_writes(proxy: Proxy, operators: Sequence[OperatorProcess]) -> list[str]:
    writes = proxy.writes()
    odd = [c for c in writes if c.resource not in OWN_WRITES.get(c.method, ())]
    odd += [c for c in writes if c.method == "PUT" and not c.path.endswith("/status")]
    # Pods of a failed job get a deadline, and nothing else.
    odd += [c for c in writes if c.method == "PATCH" and json.loads(c.body)["spec"] != {"activeDeadlineSeconds": 1}]
    changes = sum(one.who != other.who for one, other in pairwise(writes))
    kills = sum(operator.kills for operator in operators)
    return [
        *(f"the operator wrote what it never should: {call}" for call in odd),
        *([f"{changes} changes of the writing operator after {kills} kills"] if changes > kills else []),
        *(f"the operator ended by itself, with code {code}" for operator in operators for code in operator.deaths),
        *(f"in the operator's log: {line[:2000]}" for operator in operators for line in operator.tracebacks()),
    ]


async def clean(client: AdminClient, history: History) -> None:
    at_once = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    for kind, path in (("job", JOBS), ("pod", PODS), ("service", SERVICES)):
        for name in [*history.now[kind]]:
            await client.gone(f"{path}/{name}", at_once)
    await history.until(lambda: not any(history.now[k] for k in ("job", "pod", "service")), "a clean namespace", 60)
