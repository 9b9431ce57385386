"""Agents that wait at their start, and the addresses that ranks get in the coordinator's answer."""

import asyncio
from dataclasses import replace
from typing import Any

from tests.support.jobs import NOW, UID
from tests.support.running_coordinator import RunningCoordinator
from tests.support.waiting import until
from trainyard.api.agent_protocol import SYNC_PATH
from trainyard.api.internal_status import Group, Rendezvous, Replacement

WAITING = {"attempt": 2, "state": "waiting"}
POD = "pod-1-1"


def decide(coordinator: RunningCoordinator, **status: Any) -> None:
    """Store a change in the job's status."""
    coordinator.scene = coordinator.scene.with_status(**status)
    coordinator.agent_registry.wake(UID)


async def held(coordinator: RunningCoordinator, body: object) -> "asyncio.Task[tuple[int, dict[str, Any]]]":
    """Return a long poll of worker 1, which waits."""

    async def call() -> tuple[int, dict[str, Any]]:
        async with asyncio.timeout(20):
            return await coordinator.post(body, coordinator.token(POD), SYNC_PATH)

    waits = asyncio.create_task(call())
    await until(lambda: coordinator.agent_registry.connected == 1)
    return waits


async def test_ranks_of_boosting_start_once_all_workers_run(coordinator: RunningCoordinator) -> None:
    coordinator.scene = coordinator.scene.with_spec(framework="xgboost").with_status(running_time=None)
    waits = await held(coordinator, {**WAITING, "attempt": 1})
    decide(coordinator)
    await asyncio.sleep(0.05)
    assert not waits.done()
    decide(coordinator, running_time=NOW)
    status, word = await waits
    assert (status, word["attempt"], word["run"]) == (200, 1, True)
    assert word["environment"]["DMLC_TRACKER_URI"] == "train-worker-0.train"


async def test_lightgbm_gets_the_addresses_of_all_workers(coordinator: RunningCoordinator) -> None:
    coordinator.scene = coordinator.scene.with_spec(framework="lightgbm")
    coordinator.place("10.0.0.7", "10.0.0.8", "")
    waits = await held(coordinator, {**WAITING, "attempt": 1})
    decide(coordinator)
    await asyncio.sleep(0.05)
    assert not waits.done(), "an address is not known"
    coordinator.place("10.0.0.7", "10.0.0.8", "10.0.0.9")
    decide(coordinator)
    _, word = await waits
    assert word["run"] is True
    assert word["environment"]["LIGHTGBM_MACHINES"] == "10.0.0.7:12400,10.0.0.8:12400,10.0.0.9:12400"


async def test_address_of_another_attempt_does_not_count(coordinator: RunningCoordinator) -> None:
    coordinator.scene = coordinator.scene.with_spec(framework="lightgbm")
    coordinator.place("10.0.0.7", "10.0.0.8", "10.0.0.9")
    met = {"attempt": 2, "group": Group(created_in_attempt=1, replacements=[Replacement(worker=2, attempt=2)])}
    coordinator.scene = coordinator.scene.with_status(**met, rendezvous=Rendezvous(attempt=2, address="10.0.0.7"))
    waits = await held(coordinator, WAITING)
    decide(coordinator)
    await asyncio.sleep(0.05)
    assert not waits.done(), "worker 2 has a new pod"
    new = replace(coordinator.scene.pods[2], uid="pod-2-2", attempt=2)
    coordinator.scene = replace(coordinator.scene, pods=(*coordinator.scene.pods, new))
    coordinator.place("10.0.0.7", "10.0.0.8", "10.0.0.9", "10.0.0.10")
    decide(coordinator)
    _, word = await waits
    assert word["environment"]["LIGHTGBM_MACHINES"] == "10.0.0.7:12401,10.0.0.8:12401,10.0.0.10:12401"


async def test_agents_of_mpi_share_a_secret(coordinator: RunningCoordinator) -> None:
    coordinator.scene = coordinator.scene.with_spec(framework="mpi").with_status(running_time=NOW)
    coordinator.place("10.0.0.7", "10.0.0.8", "10.0.0.9")

    async def answer(pod: str) -> dict[str, Any]:
        body = {**WAITING, "attempt": 1}
        _, word = await coordinator.post(body, coordinator.token(pod), SYNC_PATH)
        return word

    first, second = await answer("pod-0-1"), await answer("pod-1-1")
    assert first["secret"] == second["secret"]
    assert len(first["secret"]) == 64
    assert first["environment"]["TRAINYARD_WORKER_ADDRESSES"] == "10.0.0.7,10.0.0.8,10.0.0.9"
    assert first["secret"] not in first["environment"].values()
    secrets = {coordinator.server.certificate.attempt_secret(uid, n) for uid in ("a", "b", UID) for n in (1, 2)}
    assert len(secrets) == 6
    assert first["secret"] in secrets
    coordinator.scene = coordinator.scene.with_spec(framework="lightgbm")
    assert "secret" not in await answer("pod-0-1")
