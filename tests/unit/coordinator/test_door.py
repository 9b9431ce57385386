"""Who is let in when many want to: one address keeps nobody out, and who could not come in is not missed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.jobs import NOW
from tests.support.waiting import until
from tests.unit.coordinator.conftest import Office
from trainyard.coordinator import listener

REPORT = {"attempt": 1, "ranks": {"1": {"step": 7}}}
CALL = {"attempt": 1, "state": "running"}


@asynccontextmanager
async def idle(office: Office, address: str, count: int, **options: Any) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many connections of one address over which nothing is said."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", office.port, local_addr=(address, 0), **options)
            stack.callback(writer.close)
            made.append(reader)
        yield made


async def test_one_address_cannot_keep_all_others_out(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 60.0)
    async with idle(office, "127.0.0.9", 2 * listener.MOST_CONNECTIONS), asyncio.timeout(5):
        assert (await office.post(REPORT))[0] == 200


async def test_what_an_address_has_too_many_of_is_closed_at_once(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MOST_OF_AN_ADDRESS", 2)
    secure = {"ssl": office.client, "server_hostname": "localhost"}
    async with idle(office, "127.0.0.9", 2, **secure) as kept, asyncio.timeout(5):
        async with idle(office, "127.0.0.9", 1) as beyond:
            assert await beyond[0].read() == b""
        assert not any(reader.at_eof() for reader in kept)

    async def comes_in() -> bool:
        try:
            async with idle(office, "127.0.0.9", 1, **secure):
                return True
        except OSError:
            return False

    async with asyncio.timeout(5):
        while not await comes_in():  # noqa: ASYNC110 - until those before have gone
            await asyncio.sleep(0.02)


async def test_agents_that_wait_take_no_room_of_their_address(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_OF_AN_ADDRESS", 1)
    waits = asyncio.create_task(office.post(CALL, path="/v1/sync"))
    await until(lambda: office.attendance.connected == 1)
    async with asyncio.timeout(5):
        assert (await office.post(REPORT))[0] == 200
    waits.cancel()


async def test_while_the_door_is_full_nobody_is_missed(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 2)
    assert office.attendance.since == NOW
    office.attendance.now = lambda: NOW + timedelta(seconds=60)
    office.attendance.monotonic = lambda: 60.0
    async with idle(office, "127.0.0.9", 1), idle(office, "127.0.0.8", 1), asyncio.timeout(5):
        await until(lambda: office.attendance.since == NOW + timedelta(seconds=60))


async def test_one_address_that_wants_too_much_holds_up_no_verdict(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MOST_OF_AN_ADDRESS", 1)
    assert office.attendance.since == NOW
    office.attendance.now = lambda: NOW + timedelta(seconds=60)
    office.attendance.monotonic = lambda: 60.0
    async with idle(office, "127.0.0.9", 5) as made, asyncio.timeout(5):
        assert await made[-1].read() == b""
        assert office.attendance.since == NOW


async def test_whose_request_is_under_way_is_not_idle(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTION_SECONDS", 0.1)
    monkeypatch.setattr(listener, "SWEEP_SECONDS", 0.05)

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"attempt": 1, '
        await asyncio.sleep(0.5)
        yield b'"ranks": {}}'

    async with office.coordinator.serve("127.0.0.1", 0) as office.port:
        assert (await office.post(b"", data=slowly()))[0] == 200


def test_all_of_it_on_the_event_loop_of_the_process(tmp_path: Path) -> None:
    """uvloop's protocols are not those of asyncio."""

    async def several() -> list[int]:
        office = Office(tmp_path)
        async with (
            asyncio.timeout(10),
            office.coordinator.serve("127.0.0.1", 0) as office.port,
            idle(office, "127.0.0.9", 20),
        ):
            return [(await office.post(REPORT))[0] for _ in range(3)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(several()) == [200, 200, 200]
