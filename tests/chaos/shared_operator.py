"""One operator for many tests, with a healthy job beside each poisoned one to show that others are not affected."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.admin_client import AdminClient
from tests.chaos.history import History, StuckError
from tests.chaos.node_stand_in import NodeStandIn
from tests.chaos.operator_process import OperatorProcess
from tests.chaos.proxy import Fault, Proxy
from tests.chaos.scenario_context import ScenarioContext
from tests.chaos.scenario_run import clean, watching
from tests.support.control_plane import OPERATOR, ControlPlane

Json = dict[str, Any]

HEALTHY: Final = "healthy"
OFTEN: Final = 3
"""More log lines of one text about one object count as a loop."""


async def _no_stage(number: int) -> None: ...


@dataclass(slots=True)
class SharedOperator:
    """The operator, its requests and its log."""

    plane: ControlPlane
    context: ScenarioContext
    proxy: Proxy
    operator: OperatorProcess
    _read: int = field(default=0, init=False)

    @property
    def history(self) -> History:
        return self.context.history

    @property
    def client(self) -> AdminClient:
        return self.context.client

    async def healthy(self) -> None:
        """Run another job from creation to completion."""
        await self.context.submit(HEALTHY)
        await self.context.until(
            lambda: self.context.status(HEALTHY).get("internal", {}).get("launchedAttempt") == 1,
            "the healthy job's workers",
        )
        await self.context.run(1, 0, 1, name=HEALTHY)
        await self.context.running(HEALTHY)
        await self.context.end(1, 0, 1, name=HEALTHY)
        await self.context.condition("Complete", "True", HEALTHY)
        assert self.context.status(HEALTHY)["attempt"] == 1
        assert self.context.status(HEALTHY)["restartCount"] == 0

    async def quiet(self, seconds: float = 2.0) -> None:
        """Assert that nothing more is written."""
        before = len(self.proxy.writes())
        await asyncio.sleep(seconds)
        late = [str(call) for call in self.proxy.writes()[before:]]
        assert not late, f"still writes: {late}"

    def lines(self) -> list[Json]:
        """Return the new log lines. A line that is not JSON belongs to the traceback of a process that crashed."""
        text = self.operator.log.read_text(errors="replace")
        new, self._read = text[self._read :], len(text)
        return [json.loads(line) if line.startswith("{") else {"exc_info": line} for line in new.splitlines()]

    def sane(self) -> None:
        """Assert that the operator runs, logged no traceback, and repeats no message."""
        lines = self.lines()
        bugs = [line["exc_info"] for line in lines if "exc_info" in line]
        assert not bugs, f"a bug: {bugs[0]}"
        deaths, self.operator.deaths[:] = [*self.operator.deaths], []
        assert not deaths, f"the operator ended by itself, with {deaths}"
        counted = Counter(f"{line['job']}: {line['message']}" for line in lines if line["level"] != "DEBUG")
        again = [reports for reports, count in counted.items() if count > OFTEN]
        assert not again, f"said again and again: {again}"

    async def until_reported(self, job: Json, words: Sequence[str]) -> None:
        """Wait until the conditions and events of a job (its metadata) contain these texts."""
        try:
            await self.history.until(lambda: all(w in self.reports(job) for w in words), f"{words} to be reported", 30)
        except StuckError as error:
            raise StuckError(f"{error}; this was reported:\n{self.reports(job)[:3000]}\n{self.lines()[-3:]}") from None

    def reports(self, job: Json) -> str:
        """Return all conditions and events of a job, one a line."""
        conditions = self.context.status(job["name"]).get("conditions", ())
        events = [e for e in self.history.now["event"].values() if e["involvedObject"].get("uid") == job["uid"]]
        return "\n".join(
            [
                *(f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions),
                *(f"{e['reason']}: {e.get('message', '')}" for e in events),
            ]
        )


@asynccontextmanager
async def admitted(
    plane: ControlPlane, folder: Path, fault: Fault | None = None, settings: Mapping[str, str] | None = None
) -> AsyncIterator[SharedOperator]:
    """Run an operator while inside; the namespace is empty afterwards."""
    proxy = Proxy(plane, fault or Fault())
    async with (
        AdminClient(plane) as client,
        History(plane.storage) as history,
        NodeStandIn(client, history) as nodes,
        proxy,
    ):
        kubeconfig = plane.kubeconfig(OPERATOR, await proxy.listen("operator"))
        operator = OperatorProcess("operator", kubeconfig, folder / "operator.log", settings or {})
        async with operator:
            await watching(proxy)
            yield SharedOperator(plane, ScenarioContext(client, history, nodes, _no_stage), proxy, operator)
        await clean(client, history)
