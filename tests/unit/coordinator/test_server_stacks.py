"""Long polls about stacks on request and about ranks that do nothing."""

import asyncio
from typing import Any

from tests.support.jobs import UID
from tests.support.running_coordinator import RunningCoordinator
from tests.support.waiting import until
from trainyard.api.agent_protocol import SYNC_PATH
from trainyard.api.internal_status import Group, StackDump

RUNNING = {"attempt": 1, "state": "running"}
POD = "pod-1-1"


def decide(coordinator: RunningCoordinator, **status: Any) -> None:
    """Store a change in the job's status."""
    coordinator.scene = coordinator.scene.with_status(**status)
    coordinator.agent_registry.wake(UID)


async def held(coordinator: RunningCoordinator, body: object) -> "asyncio.Task[tuple[int, dict[str, Any]]]":
    waits = asyncio.create_task(coordinator.post(body, coordinator.token(POD), SYNC_PATH))
    await until(lambda: coordinator.agent_registry.connected == 1)
    return waits


async def test_agents_receive_each_request_for_stacks_once(coordinator: RunningCoordinator) -> None:
    waits = await held(coordinator, RUNNING | {"stacks": ""})
    decide(coordinator, stack_dump=StackDump(request="monday", attempt=1))
    assert (await waits)[1]["stacks"] == "monday"
    met = await held(coordinator, RUNNING | {"stacks": "monday"})
    decide(coordinator)
    await asyncio.sleep(0.05)
    assert not met.done()
    decide(coordinator, attempt=2, group=Group(created_in_attempt=1))
    assert "stacks" not in (await met)[1], "the ranks of a later attempt were not asked"


async def test_older_agent_receives_no_request_for_stacks(coordinator: RunningCoordinator) -> None:
    waits = await held(coordinator, RUNNING)
    decide(coordinator, stack_dump=StackDump(request="monday", attempt=1))
    await asyncio.sleep(0.05)
    assert not waits.done()
    decide(coordinator, attempt=2, group=Group(created_in_attempt=1))
    await waits


async def test_idle_ranks_are_known_at_once(coordinator: RunningCoordinator) -> None:
    waits = await held(coordinator, RUNNING | {"stacks": "", "idle": True})
    assert coordinator.agent_registry.of(UID, [POD])[POD].idle
    decide(coordinator, attempt=2, group=Group(created_in_attempt=1))
    await waits
