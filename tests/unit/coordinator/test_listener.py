"""The limits on unauthenticated connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.jobs import NOW
from tests.support.running_coordinator import RunningCoordinator
from tests.support.waiting import until
from trainyard.coordinator import listener

REPORT = {"attempt": 1, "ranks": {"1": {"step": 7}}}
CALL = {"attempt": 1, "state": "running"}


@asynccontextmanager
async def idle(
    coordinator: RunningCoordinator, address: str, count: int, **options: Any
) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Open `count` connections of one address that send nothing."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", coordinator.port, local_addr=(address, 0), **options
            )
            stack.callback(writer.close)
            made.append(reader)
        yield made


async def test_one_address_cannot_lock_out_others(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "TLS_HANDSHAKE_SECONDS", 60.0)
    async with idle(coordinator, "127.0.0.9", 2 * listener.MAX_UNAUTHENTICATED_CONNECTIONS), asyncio.timeout(5):
        assert (await coordinator.post(REPORT))[0] == 200


async def test_excess_connections_of_an_address_are_closed(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_UNAUTHENTICATED_PER_ADDRESS", 2)
    secure = {"ssl": coordinator.client, "server_hostname": "localhost"}
    async with idle(coordinator, "127.0.0.9", 2, **secure) as kept, asyncio.timeout(5):
        async with idle(coordinator, "127.0.0.9", 1) as beyond:
            assert await beyond[0].read() == b""
        assert not any(reader.at_eof() for reader in kept)

    async def comes_in() -> bool:
        try:
            async with idle(coordinator, "127.0.0.9", 1, **secure):
                return True
        except OSError:
            return False

    async with asyncio.timeout(5):
        while not await comes_in():  # noqa: ASYNC110 - until those before have gone
            await asyncio.sleep(0.02)


async def test_long_polls_do_not_count_against_the_address(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_UNAUTHENTICATED_PER_ADDRESS", 1)
    waits = asyncio.create_task(coordinator.post(CALL, path="/v1/sync"))
    await until(lambda: coordinator.agent_registry.connected == 1)
    async with asyncio.timeout(5):
        assert (await coordinator.post(REPORT))[0] == 200
    waits.cancel()


async def test_full_listener_restarts_the_grace_period(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_UNAUTHENTICATED_CONNECTIONS", 2)
    assert coordinator.agent_registry.since == NOW
    coordinator.agent_registry.now = lambda: NOW + timedelta(seconds=60)
    coordinator.agent_registry.monotonic = lambda: 60.0
    async with idle(coordinator, "127.0.0.9", 1), idle(coordinator, "127.0.0.8", 1), asyncio.timeout(5):
        await until(lambda: coordinator.agent_registry.since == NOW + timedelta(seconds=60))


async def test_excess_of_one_address_restarts_no_grace_period(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_UNAUTHENTICATED_PER_ADDRESS", 1)
    assert coordinator.agent_registry.since == NOW
    coordinator.agent_registry.now = lambda: NOW + timedelta(seconds=60)
    coordinator.agent_registry.monotonic = lambda: 60.0
    async with idle(coordinator, "127.0.0.9", 5) as made, asyncio.timeout(5):
        assert await made[-1].read() == b""
        assert coordinator.agent_registry.since == NOW


async def test_connection_with_request_in_progress_is_not_idle(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "UNAUTHENTICATED_IDLE_SECONDS", 0.1)
    monkeypatch.setattr(listener, "SWEEP_SECONDS", 0.05)

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"attempt": 1, '
        await asyncio.sleep(0.5)
        yield b'"ranks": {}}'

    async with coordinator.server.serve("127.0.0.1", 0) as coordinator.port:
        assert (await coordinator.post(b"", data=slowly()))[0] == 200


def test_listener_works_on_uvloop(tmp_path: Path) -> None:
    """uvloop's protocols are not those of asyncio."""

    async def several() -> list[int]:
        coordinator = RunningCoordinator(tmp_path)
        async with (
            asyncio.timeout(10),
            coordinator.server.serve("127.0.0.1", 0) as coordinator.port,
            idle(coordinator, "127.0.0.9", 20),
        ):
            return [(await coordinator.post(REPORT))[0] for _ in range(3)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(several()) == [200, 200, 200]
