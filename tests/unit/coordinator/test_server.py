"""The server over real TLS: accepted and rejected reports."""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from dev.benchmarks.agents.credentials import certificate
from tests.support.jobs import UID
from tests.support.running_coordinator import RunningCoordinator
from trainyard.api.agent_protocol import MAX_BODY_BYTES, REPORT_PATH
from trainyard.coordinator import connection_limits, listener, server
from trainyard.coordinator.progress_store import ProgressStore

HEAD = b"POST /v1/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\n"
GOOD = {"attempt": 1, "ranks": {"1": {"step": 7}}}


async def test_report_is_accepted_with_the_next_interval(coordinator: RunningCoordinator) -> None:
    assert await coordinator.post(GOOD) == (200, {"next": 5.0})
    assert [rank.step for report in coordinator.progress_store.of(UID) for rank in report.ranks] == [7]
    assert (coordinator.changes, coordinator.counted("Accepted")) == ([UID], 1)


@pytest.mark.parametrize(
    ("body", "uid", "claims", "status", "reason"),
    [
        (GOOD, "pod-0-1", {}, 403, "ForeignRank"),
        (GOOD, "pod-of-another-job", {}, 403, "UnknownPod"),
        (GOOD, "pod-1-1", {"exp": 1}, 401, "ExpiredToken"),
        (GOOD, "pod-1-1", {"aud": "vault"}, 401, "BadToken"),
        ({**GOOD, "attempt": 2}, "pod-1-1", {}, 409, "StaleAttempt"),
        (b'{"attempt": 1, "ranks": {"1": {"step": NaN}}}', "pod-1-1", {}, 400, "Malformed"),
        (b'{"attempt": 1, "ranks": {"1": {"step": -7}}}', "pod-1-1", {}, 400, "Malformed"),
        (b"x" * 10_000_000, "pod-1-1", {}, 413, "TooLarge"),
    ],
)
async def test_rejected_report_is_counted_and_changes_nothing(
    coordinator: RunningCoordinator, body: object, uid: str, claims: dict[str, object], status: int, reason: str
) -> None:
    answered, answer = await coordinator.post(body, coordinator.token(uid, **claims))
    assert (answered, answer["reason"]) == (status, reason)
    assert answer["message"]
    assert (coordinator.counted(reason), coordinator.counted("Accepted")) == (1, 0)
    assert (coordinator.progress_store.of(UID), coordinator.changes) == ([], [])


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz"])
async def test_request_without_token_is_rejected(coordinator: RunningCoordinator, header: str) -> None:
    status, answer = await coordinator.post(GOOD, headers={"Authorization": header})
    assert (status, answer["reason"]) == (401, "NoToken")


async def test_body_of_unauthenticated_request_is_not_read(coordinator: RunningCoordinator) -> None:
    status, answer = await coordinator.post(b"x" * (MAX_BODY_BYTES * 2), "no token")
    assert (status, answer["reason"]) == (401, "BadToken")


@pytest.mark.parametrize("path", [REPORT_PATH, "/v1/sync"])
async def test_body_of_unknown_pod_is_not_read(coordinator: RunningCoordinator, path: str) -> None:
    status, answer = await coordinator.post(b"x" * (MAX_BODY_BYTES * 2), coordinator.token("pod-of-no-job"), path)
    assert (status, answer["reason"]) == (403, "UnknownPod")


@pytest.mark.parametrize("path", [REPORT_PATH, "/v1/sync"])
async def test_body_has_the_size_of_its_job(coordinator: RunningCoordinator, path: str) -> None:
    """A worker with one rank sends no half a megabyte, and one in chunks has no length before its end."""

    async def in_chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 10_000

    status, answer = await coordinator.post(b"x" * 100_000, path=path)
    assert (status, answer["reason"]) == (413, "TooLarge")
    status, answer = await coordinator.post(b"", path=path, data=in_chunks())
    assert (status, answer["reason"]) == (413, "TooLarge")


async def test_standby_rejects_requests(coordinator: RunningCoordinator) -> None:
    coordinator.leading = False
    status, answer = await coordinator.post(GOOD)
    assert (status, answer["reason"], coordinator.progress_store.of(UID)) == (503, "NotLeading", [])


async def test_nothing_else_is_served(coordinator: RunningCoordinator) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/", "/metrics", "/v1", REPORT_PATH):
            async with session.get(f"https://localhost:{coordinator.port}{path}", ssl=coordinator.client) as answer:
                assert answer.status in {404, 405}


async def test_slow_body_is_rejected(coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_TIMEOUT_SECONDS", 0.1)

    async def drip() -> AsyncIterator[bytes]:
        yield b'{"attempt"'
        await asyncio.sleep(5)

    began = time.monotonic()
    status, answer = await coordinator.post(b"", data=drip())
    assert (status, answer["reason"]) == (408, "TooSlow")
    assert time.monotonic() - began < 4


async def test_idle_connection_is_closed(coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "UNAUTHENTICATED_IDLE_SECONDS", 0.2)
    monkeypatch.setattr(listener, "SWEEP_SECONDS", 0.05)
    async with coordinator.server.serve("127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=coordinator.client)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_connections_above_the_limit_wait(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_UNAUTHENTICATED_CONNECTIONS", 2)
    monkeypatch.setattr(connection_limits, "MIN_AGE_SECONDS", 60.0)
    coordinator.place("127.0.0.1")
    kept = [await asyncio.open_connection("localhost", coordinator.port, ssl=coordinator.client) for _ in range(2)]
    turn = asyncio.create_task(coordinator.post(GOOD))
    await asyncio.sleep(0.2)
    assert (turn.done(), coordinator.progress_store.of(UID)) == (False, [])
    for _, writer in kept:
        writer.close()
    async with asyncio.timeout(10):
        assert (await turn)[0] == 200


async def test_missing_handshake_times_out(coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "MAX_UNAUTHENTICATED_CONNECTIONS", 2)
    monkeypatch.setattr(connection_limits, "MIN_AGE_SECONDS", 60.0)
    coordinator.place("127.0.0.1")
    monkeypatch.setattr(listener, "TLS_HANDSHAKE_SECONDS", 0.2)
    kept = [await asyncio.open_connection("localhost", coordinator.port) for _ in range(2)]
    async with asyncio.timeout(10):
        assert (await coordinator.post(GOOD))[0] == 200
    for _, writer in kept:
        writer.close()


@pytest.mark.parametrize(
    ("sent", "tls"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", False),
        (b"\x16\x03\x01\xff\xff" + b"x" * 100, False),
        (b"", False),
        (b"\x00" * 10_000, True),
        (b"POST /v1/report HTTP/1.1\r\nA: " + b"x" * 100_000, True),
        (HEAD + b"Content-Length: 100\r\n\r\n{", True),
        (HEAD + b"Content-Length: -1\r\n\r\n{", True),
        (HEAD + b"Content-Length: 1e9\r\n\r\n{", True),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}", True),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope", True),
    ],
)
async def test_malformed_traffic_does_no_harm(
    coordinator: RunningCoordinator, caplog: pytest.LogCaptureFixture, *, sent: bytes, tls: bool
) -> None:
    """There is no traceback, and other reports are accepted."""
    reader, writer = await asyncio.open_connection(
        "localhost", coordinator.port, ssl=coordinator.client if tls else None
    )
    writer.write(sent.replace(b"TOKEN", coordinator.token().encode()))
    if tls:
        await writer.drain()
        await asyncio.sleep(0.05)
    writer.close()
    assert await coordinator.post(GOOD) == (200, {"next": 5.0})
    await asyncio.sleep(0.05)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert reader is not None


async def test_renewed_certificate_is_served(coordinator: RunningCoordinator, tmp_path: Path) -> None:
    renewed = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    renewed.load_verify_locations(cadata=certificate(tmp_path))
    with pytest.raises(aiohttp.ClientError):
        await coordinator.post(GOOD, ssl=renewed)
    coordinator.certificate_folder.reload()
    assert (await coordinator.post(GOOD, ssl=renewed))[0] == 200


async def test_own_error_is_logged(
    coordinator: RunningCoordinator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(*_: object) -> float:
        raise RuntimeError("boom")

    monkeypatch.setattr(ProgressStore, "accept", accept)
    with pytest.raises(aiohttp.ContentTypeError):
        await coordinator.post(GOOD)
    assert "RuntimeError: boom" in caplog.text
