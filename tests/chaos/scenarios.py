"""The scenarios that run with and without faults. Each step waits for the result of the previous one."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.chaos.scenario_context import ScenarioContext


async def _started(context: ScenarioContext, replicas: int = 2) -> None:
    await context.submit(replicas=replicas)
    await context.stage()
    await context.created(1, replicas)
    await context.run(1, *range(replicas))
    await context.running()
    await context.stage()


async def _finished(context: ScenarioContext, attempt: int, replicas: int = 2) -> None:
    await context.run(attempt, *range(replicas))
    await context.running()
    await context.stage()
    await context.end(attempt, *range(replicas))
    await context.condition("Complete", "True")


async def complete(context: ScenarioContext) -> None:
    """Create, run, complete; then the operator is asked nothing any more."""
    await _started(context)
    await context.end(1, 1)
    await context.stage()
    await context.end(1, 0)
    await context.condition("Complete", "True")
    await context.stage()


async def fail(context: ScenarioContext) -> None:
    """A worker fails; attempt 2 completes."""
    await _started(context)
    await context.end(1, 1, code=7, message="out of luck")
    await context.created(2, 2)
    await context.stage()
    await _finished(context, 2)


async def exhaust(context: ScenarioContext) -> None:
    """Two failures where one is allowed: the job fails."""
    await context.submit(recovery={"maxRestarts": 1})
    await context.stage()
    await context.created(1, 2)
    await context.run(1, 0, 1)
    await context.running()
    await context.end(1, 0, code=3)
    await context.created(2, 2)
    await context.run(2, 0, 1)
    await context.running()
    await context.stage()
    await context.end(2, 0, code=4)
    await context.condition("Failed", "True")


async def evict(context: ScenarioContext) -> None:
    """A user deletes a pod: attempt 2, not counted."""
    await _started(context)
    await context.delete_pod(1, 1)
    await context.created(2, 2)
    await context.stage()
    await _finished(context, 2)


async def suspend(context: ScenarioContext) -> None:
    """Suspended in full run, resumed, completed."""
    await _started(context)
    await context.change(lifecycle={"suspend": True})
    await context.condition("Suspended", "True")
    await context.until(lambda: not context.history.pods(), "all pods to be gone")
    await context.stage()
    await context.change(lifecycle={"suspend": False})
    await context.created(2, 2)
    await _finished(context, 2)


async def resize(context: ScenarioContext) -> None:
    """From two workers to three by the scale subresource."""
    await _started(context)
    await context.scale(3)
    await context.created(2, 3)
    await context.stage()
    await _finished(context, 2, 3)


async def delete(context: ScenarioContext) -> None:
    """The user deletes the job while it runs."""
    await _started(context)
    await context.delete()
    await context.gone()
    await context.stage()


async def recreate(context: ScenarioContext) -> None:
    """Deleted while it runs, and at once there is another job of that name."""
    await _started(context)
    first = context.history.jobs()["job"]["metadata"]["uid"]
    await context.delete()
    await context.submit()
    await context.stage()
    await context.until(lambda: not context.history.pods(first), "the pods of the first job to be gone")
    await context.created(1, 2)
    await _finished(context, 1)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story with its length: plans strike at each write, event and stage."""

    play: Callable[[ScenarioContext], Awaitable[None]]
    writes: int
    """How many writes the operator needs for it (Services, pods and status)."""
    events: int
    """How many events its watches tell of."""
    stages: int


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "complete": Scenario(complete, 6, 13, 4),
    "fail": Scenario(fail, 13, 29, 4),
    "exhaust": Scenario(exhaust, 15, 33, 2),
    "evict": Scenario(evict, 12, 30, 4),
    "suspend": Scenario(suspend, 14, 33, 4),
    "resize": Scenario(resize, 14, 35, 4),
    "delete": Scenario(delete, 5, 20, 3),
    "recreate": Scenario(recreate, 13, 34, 4),
}
