"""What a program in a worker, with the valid token of its pod, sends in place of the agent's requests."""

import asyncio
import gzip
import json

import pytest

from tests.support.running_coordinator import RunningCoordinator
from tests.support.waiting import until
from trainyard.api.agent_protocol import REPORT_PATH, SYNC_PATH
from trainyard.coordinator import connection_limits

QUEUED_REQUESTS = 64
"""Requests of one connection that may wait in memory."""
FLOOD = 20_000


def head(coordinator: RunningCoordinator, path: str, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {coordinator.token()}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def sync(coordinator: RunningCoordinator, state: str) -> bytes:
    body = json.dumps({"attempt": 1, "state": state}).encode()
    return head(coordinator, SYNC_PATH, f"Content-Length: {len(body)}") + body


@pytest.mark.parametrize("first", [[], ["ended"] * 10], ids=["while it waits", "after answers"])
async def test_pipelined_requests_are_not_kept(coordinator: RunningCoordinator, first: list[str]) -> None:
    """A long poll lasts a minute. What is sent behind it stays in the network."""
    reader, writer = await asyncio.open_connection("localhost", coordinator.port, ssl=coordinator.client)
    most = 0

    async def look() -> None:
        nonlocal most
        while True:
            for connection in [*coordinator.server.authenticated.connections]:
                most = max(most, len(connection._messages))  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)

    looking = asyncio.create_task(look())
    try:
        for state in [*first, "running"]:
            writer.write(sync(coordinator, state))
        await writer.drain()
        await until(lambda: coordinator.server.authenticated.connections)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * FLOOD)
        for _ in range(50):
            await asyncio.sleep(0.01)
    finally:
        looking.cancel()
        writer.transport.abort()
    assert 0 < most <= QUEUED_REQUESTS
    assert not reader.at_eof() or first


async def test_slow_bodies_give_way(coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that send a byte a second would hold all connections for as long as a body may take."""
    monkeypatch.setattr(connection_limits, "MAX_PER_UNKNOWN_ADDRESS", 2)
    monkeypatch.setattr(connection_limits, "MIN_AGE_SECONDS", 0.1)
    slow = [await asyncio.open_connection("localhost", coordinator.port, ssl=coordinator.client) for _ in range(2)]
    try:
        for _, writer in slow:
            writer.write(head(coordinator, REPORT_PATH, "Content-Length: 1000") + b"{")
        await until(lambda: len(coordinator.server.authenticated.serving) == 2)
        await asyncio.sleep(0.2)
        async with asyncio.timeout(5):
            assert (await coordinator.post({"attempt": 1, "ranks": {"1": {"step": 7}}}))[0] == 200
            await slow[0][0].read()
        assert not slow[1][0].at_eof(), "one gives way for one"
    finally:
        for _, writer in slow:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (gzip.compress(b"0" * 100_000_000), {"Content-Encoding": "gzip"}),
        (gzip.compress(b"0" * 100_000_000), {"Content-Encoding": "deflate"}),
        (b'{"attempt":1,"ranks":' + b"[" * 12_000 + b"]" * 12_000 + b"}", {}),
        (b'{"attempt":' + b"9" * 12_000 + b"}", {}),
        (b'{"attempt":1e999,"ranks":{"0":{"step":NaN}}}', {}),
        ('{"attempt":1,"ranks":{"\u0660":{"step":1}}}'.encode(), {}),
        (b'{"attempt":1,"ranks":{"\xff":{}}}', {}),
        (b"\xef\xbb\xbf{}", {}),
    ],
    ids=["gzip", "deflate", "deep", "long number", "infinite", "digit of another script", "no UTF-8", "mark"],
)
async def test_strange_body_is_refused(coordinator: RunningCoordinator, body: bytes, headers: dict[str, str]) -> None:
    given = {"Authorization": f"Bearer {coordinator.token()}", **headers}
    status, refusal = await coordinator.post(
        body, path=REPORT_PATH, headers=given, skip_auto_headers=("Content-Encoding",)
    )
    assert (status, refusal["reason"]) in {(400, "Malformed"), (413, "TooLarge")}
    assert len(refusal["message"]) < 1000
    assert not coordinator.changes


@pytest.mark.parametrize(
    "lines",
    [
        [f"X-{n}: {'a' * 100}" for n in range(10_000)],
        ["X: " + "a" * 1_000_000],
        ["Content-Length: 5", "Content-Length: 7"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, chunked"],
        ["Content-Length: +5"],
    ],
    ids=["many", "long", "two lengths", "length and chunks", "chunks twice", "signed length"],
)
async def test_strange_header_closes_the_connection(coordinator: RunningCoordinator, lines: list[str]) -> None:
    reader, writer = await asyncio.open_connection("localhost", coordinator.port, ssl=coordinator.client)
    try:
        writer.write(head(coordinator, REPORT_PATH, *lines) + b"5\r\n{}   \r\n0\r\n\r\n")
        async with asyncio.timeout(5):
            answer = await reader.read(12)
        assert answer in {b"HTTP/1.0 400", b""}
    finally:
        writer.transport.abort()
    assert (await coordinator.post({"attempt": 1, "ranks": {"1": {"step": 7}}}))[0] == 200
