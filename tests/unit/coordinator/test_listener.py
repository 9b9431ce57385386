"""The limits on unauthenticated connections."""

import asyncio
from collections.abc import AsyncIterator, Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from typing_extensions import override

from tests.support.jobs import NOW
from tests.support.running_coordinator import RunningCoordinator
from tests.support.waiting import until
from trainyard.coordinator import connection_limits, listener

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
    async with (
        idle(coordinator, "127.0.0.9", 2 * connection_limits.MAX_UNAUTHENTICATED_CONNECTIONS),
        asyncio.timeout(5),
    ):
        assert (await coordinator.post(REPORT))[0] == 200


async def test_excess_connections_of_an_address_are_closed(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_PER_UNKNOWN_ADDRESS", 2)
    monkeypatch.setattr(connection_limits, "MIN_AGE_SECONDS", 60.0)
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
    monkeypatch.setattr(connection_limits, "MAX_PER_UNKNOWN_ADDRESS", 1)
    waits = asyncio.create_task(coordinator.post(CALL, path="/v1/sync"))
    await until(lambda: coordinator.agent_registry.connected == 1)
    async with asyncio.timeout(5):
        assert (await coordinator.post(REPORT))[0] == 200
    waits.cancel()


async def test_new_connection_copies_no_long_polls(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Uncopied(set[Any]):
        """A set of thousands. Freed copies would dirty the memory that buffers of TLS use next, 256 KiB for each connection."""

        @override
        def __sub__(self, other: AbstractSet[Any]) -> set[Any]:
            raise AssertionError("the set was copied")

    monkeypatch.setattr(coordinator.server.authenticated, "serving", Uncopied())
    async with asyncio.timeout(5):
        assert (await coordinator.post(REPORT))[0] == 200


async def test_full_listener_restarts_the_grace_period(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_UNAUTHENTICATED_CONNECTIONS", 2)
    coordinator.place("127.0.0.9", "127.0.0.8")
    assert coordinator.agent_registry.since == NOW
    coordinator.agent_registry.now = lambda: NOW + timedelta(seconds=60)
    coordinator.agent_registry.monotonic = lambda: 60.0
    async with idle(coordinator, "127.0.0.9", 2), idle(coordinator, "127.0.0.8", 1), asyncio.timeout(5):
        await until(lambda: coordinator.agent_registry.since == NOW + timedelta(seconds=60))


async def test_excess_restarts_only_its_own_grace_period(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_PER_WORKER", 1)
    coordinator.place("127.0.0.9", "127.0.0.8")
    assert coordinator.agent_registry.since == NOW
    later = NOW + timedelta(seconds=60)
    coordinator.agent_registry.now = lambda: later
    coordinator.agent_registry.monotonic = lambda: 60.0
    async with idle(coordinator, "127.0.0.9", 5) as made, asyncio.timeout(5):
        assert await made[-1].read() == b""
        registry = coordinator.agent_registry
        assert (registry.since_for(["127.0.0.8"]), registry.since_for(["127.0.0.8", "127.0.0.9"])) == (NOW, later)


async def test_unknown_addresses_restart_no_grace_period(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_PER_UNKNOWN_ADDRESS", 1)
    coordinator.place("127.0.0.8")
    assert coordinator.agent_registry.since == NOW
    coordinator.agent_registry.now = lambda: NOW + timedelta(seconds=60)
    coordinator.agent_registry.monotonic = lambda: 60.0
    async with idle(coordinator, "127.0.0.9", 5) as made, asyncio.timeout(5):
        assert await made[-1].read() == b""
        assert coordinator.agent_registry.since_for(["127.0.0.8", "127.0.0.9"]) == NOW


@pytest.mark.parametrize("handshake", [True, False], ids=["after the handshake", "in the handshake"])
def test_unknown_connection_gives_way_to_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, handshake: bool
) -> None:
    """Connections of strangers fill the listener, on the event loop of the operator."""
    monkeypatch.setattr(connection_limits, "MAX_UNAUTHENTICATED_CONNECTIONS", 4)
    monkeypatch.setattr(listener, "TLS_HANDSHAKE_SECONDS", 60.0)
    monkeypatch.setattr(listener, "UNAUTHENTICATED_IDLE_SECONDS", 60.0)

    async def run() -> tuple[int, list[bool]]:
        coordinator = RunningCoordinator(tmp_path)
        coordinator.place("127.0.0.1", "127.0.0.7")
        secure: dict[str, Any] = {"ssl": coordinator.client, "server_hostname": "localhost"} if handshake else {}
        async with (
            asyncio.timeout(10),
            coordinator.server.serve("127.0.0.1", 0) as coordinator.port,
            idle(coordinator, "127.0.0.9", 2, **secure) as strangers,
            idle(coordinator, "127.0.0.7", 2, **secure) as workers,
        ):
            status, _ = await coordinator.post(REPORT)
            await strangers[0].read()
            return status, [reader.at_eof() for reader in (*strangers, *workers)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == (200, [True, False, False, False])


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
