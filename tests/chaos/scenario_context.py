"""The vocabulary of scenarios: acts of users and nodes, waits for results, and stages at which a fault may strike."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.admin_client import JOBS, MERGE, PODS, AdminClient
from tests.chaos.history import History, StuckError
from tests.chaos.node_stand_in import NodeStandIn

Json = dict[str, Any]

WITHIN: Final = 100.0
"""The timeout of a wait. A silent watch is noticed after 90 seconds; everything else takes a few."""


@dataclass(slots=True)
class ScenarioContext:
    """One namespace, its user, and the stand-in for its nodes."""

    client: AdminClient
    history: History
    nodes: NodeStandIn
    at_stage: Callable[[int], Awaitable[None]]
    own_writes: set[int] = field(default_factory=set)
    """The versions at which the user changed a job: the operator must not change a spec."""
    stages: int = 0

    # What the user does

    async def submit(self, name: str = "job", *, replicas: int = 2, **spec: Any) -> None:
        container = {"name": "main", "image": "trainer:1"}
        template = {"spec": {"terminationGracePeriodSeconds": 5, "containers": [container]}}
        whole = {"framework": "torch", "replicas": replicas, "template": template, **spec}
        kind = {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob"}
        await self._own(self.client.call("POST", JOBS, {**kind, "metadata": {"name": name}, "spec": whole}))

    async def change(self, name: str = "job", **spec: Any) -> None:
        await self._own(self.client.call("PATCH", f"{JOBS}/{name}", {"spec": spec}, MERGE))

    async def scale(self, replicas: int, name: str = "job") -> None:
        await self._own(self.client.call("PATCH", f"{JOBS}/{name}/scale", {"spec": {"replicas": replicas}}, MERGE))

    async def delete(self, name: str = "job") -> None:
        await self.client.gone(f"{JOBS}/{name}")

    async def _own(self, request: Awaitable[Json]) -> None:
        self.own_writes.add(int((await request)["metadata"]["resourceVersion"]))

    # What the nodes do, worker by worker

    async def run(self, attempt: int, *indexes: int, name: str = "job") -> None:
        for index in indexes:
            await self.nodes.bind(worker(index, attempt, name))
        for index in indexes:
            await self.nodes.run(worker(index, attempt, name))

    async def end(self, attempt: int, *indexes: int, code: int = 0, message: str = "", name: str = "job") -> None:
        for index in indexes:
            await self.nodes.end(worker(index, attempt, name), code, message)

    async def delete_pod(self, attempt: int, index: int) -> None:
        await self.client.gone(f"{PODS}/{worker(index, attempt)}")

    # What must follow

    async def stage(self) -> None:
        """Mark a stage: nothing is in progress, and the next act follows."""
        self.stages += 1
        await self.at_stage(self.stages)

    async def created(self, attempt: int, count: int, name: str = "job") -> None:
        """Wait until the workers of an attempt exist, no others do, and the status shows the attempt."""
        names = {worker(index, attempt, name) for index in range(count)}

        def holds() -> bool:
            return {*self.history.now["pod"]} == names and self.status(name).get("internal", {}).get(
                "launchedAttempt"
            ) == attempt

        await self.until(holds, f"{count} workers of attempt {attempt} of {name}")

    async def running(self, name: str = "job") -> None:
        await self.condition("Running", "True", name)

    async def condition(self, kind: str, status: str, name: str = "job") -> None:
        def holds() -> bool:
            return any(c["type"] == kind and c["status"] == status for c in self.status(name).get("conditions", ()))

        await self.until(holds, f"condition {kind} of {name} to be {status}")

    async def gone(self) -> None:
        """Wait until all jobs, pods and services are gone."""
        await self.until(lambda: not any(self.history.now[k] for k in ("job", "pod", "service")), "all to be gone")

    def status(self, name: str = "job") -> Json:
        found: Json = self.history.jobs().get(name, {}).get("status") or {}
        return found

    async def until(self, holds: Callable[[], object], what: str) -> None:
        try:
            await self.history.until(holds, what, WITHIN)
        except StuckError as error:
            raise StuckError(f"{error}, at stage {self.stages}") from None


def worker(index: int, attempt: int, job: str = "job") -> str:
    """Return the name of a worker's pod."""
    return f"{job}-worker-{index}-{attempt}"
