"""The stories that are played with and without faults. Each step waits for what must follow from the one before."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.chaos.lab import Lab


async def _started(lab: Lab, replicas: int = 2) -> None:
    await lab.submit(replicas=replicas)
    await lab.stage()
    await lab.created(1, replicas)
    await lab.run(1, *range(replicas))
    await lab.running()
    await lab.stage()


async def _finished(lab: Lab, attempt: int, replicas: int = 2) -> None:
    await lab.run(attempt, *range(replicas))
    await lab.running()
    await lab.stage()
    await lab.end(attempt, *range(replicas))
    await lab.condition("Complete", "True")


async def complete(lab: Lab) -> None:
    """Create, run, complete; then the operator is asked nothing any more."""
    await _started(lab)
    await lab.end(1, 1)
    await lab.stage()
    await lab.end(1, 0)
    await lab.condition("Complete", "True")
    await lab.stage()


async def fail(lab: Lab) -> None:
    """A worker fails; attempt 2 completes."""
    await _started(lab)
    await lab.end(1, 1, code=7, message="out of luck")
    await lab.created(2, 2)
    await lab.stage()
    await _finished(lab, 2)


async def exhaust(lab: Lab) -> None:
    """Two failures where one is allowed: the job fails."""
    await lab.submit(recovery={"maxRestarts": 1})
    await lab.stage()
    await lab.created(1, 2)
    await lab.run(1, 0, 1)
    await lab.running()
    await lab.end(1, 0, code=3)
    await lab.created(2, 2)
    await lab.run(2, 0, 1)
    await lab.running()
    await lab.stage()
    await lab.end(2, 0, code=4)
    await lab.condition("Failed", "True")


async def evict(lab: Lab) -> None:
    """Somebody deletes a pod: attempt 2, at no charge."""
    await _started(lab)
    await lab.delete_pod(1, 1)
    await lab.created(2, 2)
    await lab.stage()
    await _finished(lab, 2)


async def suspend(lab: Lab) -> None:
    """Suspended in full run, resumed, completed."""
    await _started(lab)
    await lab.change(lifecycle={"suspend": True})
    await lab.condition("Suspended", "True")
    await lab.until(lambda: not lab.history.pods(), "all pods to be gone")
    await lab.stage()
    await lab.change(lifecycle={"suspend": False})
    await lab.created(2, 2)
    await _finished(lab, 2)


async def resize(lab: Lab) -> None:
    """From two workers to three by the scale subresource."""
    await _started(lab)
    await lab.scale(3)
    await lab.created(2, 3)
    await lab.stage()
    await _finished(lab, 2, 3)


async def delete(lab: Lab) -> None:
    """The user deletes the job while it runs."""
    await _started(lab)
    await lab.delete()
    await lab.gone()
    await lab.stage()


async def recreate(lab: Lab) -> None:
    """Deleted while it runs, and at once there is another job of that name."""
    await _started(lab)
    first = lab.history.jobs()["job"]["metadata"]["uid"]
    await lab.delete()
    await lab.submit()
    await lab.stage()
    await lab.until(lambda: not lab.history.pods(first), "the pods of the first job to be gone")
    await lab.created(1, 2)
    await _finished(lab, 1)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story with its length: plans strike at each write, event and stage."""

    play: Callable[[Lab], Awaitable[None]]
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
