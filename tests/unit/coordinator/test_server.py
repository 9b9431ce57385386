"""The service over real TLS: what is taken, and what is refused, counted, and changes nothing."""

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
from tests.unit.coordinator.conftest import Office
from trainyard.api.agent_protocol import MAX_BODY_BYTES, REPORT_PATH
from trainyard.coordinator import listener, server
from trainyard.coordinator.progress_store import Board

HEAD = b"POST /v1/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\n"
GOOD = {"attempt": 1, "ranks": {"1": {"step": 7}}}


async def test_a_report_is_taken_and_told_when_to_come_back(office: Office) -> None:
    assert await office.post(GOOD) == (200, {"next": 5.0})
    assert [rank.step for report in office.board.of(UID) for rank in report.ranks] == [7]
    assert (office.news, office.counted("Accepted")) == ([UID], 1)


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
async def test_what_is_not_taken_is_counted_and_changes_nothing(
    office: Office, body: object, uid: str, claims: dict[str, object], status: int, reason: str
) -> None:
    answered, answer = await office.post(body, office.token(uid, **claims))
    assert (answered, answer["reason"]) == (status, reason)
    assert answer["message"]
    assert (office.counted(reason), office.counted("Accepted")) == (1, 0)
    assert (office.board.of(UID), office.news) == ([], [])


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz"])
async def test_without_a_token_nothing_is_said(office: Office, header: str) -> None:
    status, answer = await office.post(GOOD, headers={"Authorization": header})
    assert (status, answer["reason"]) == (401, "NoToken")


async def test_a_stranger_s_body_is_not_read(office: Office) -> None:
    status, answer = await office.post(b"x" * (MAX_BODY_BYTES * 2), "no token")
    assert (status, answer["reason"]) == (401, "BadToken")


async def test_who_stands_by_sends_agents_on(office: Office) -> None:
    office.leading = False
    status, answer = await office.post(GOOD)
    assert (status, answer["reason"], office.board.of(UID)) == (503, "NotLeading", [])


async def test_nothing_else_is_served(office: Office) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/", "/metrics", "/v1", REPORT_PATH):
            async with session.get(f"https://localhost:{office.port}{path}", ssl=office.client) as answer:
                assert answer.status in {404, 405}


async def test_a_body_that_does_not_come_is_not_waited_for(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.1)

    async def drip() -> AsyncIterator[bytes]:
        yield b'{"attempt"'
        await asyncio.sleep(5)

    began = time.monotonic()
    status, answer = await office.post(b"", data=drip())
    assert (status, answer["reason"]) == (408, "TooSlow")
    assert time.monotonic() - began < 4


async def test_a_connection_that_says_nothing_is_closed(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTION_SECONDS", 0.2)
    monkeypatch.setattr(listener, "SWEEP_SECONDS", 0.05)
    async with office.coordinator.serve("127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=office.client)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_more_connections_than_there_is_room_for_wait_for_their_turn(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 2)
    kept = [await asyncio.open_connection("localhost", office.port, ssl=office.client) for _ in range(2)]
    turn = asyncio.create_task(office.post(GOOD))
    await asyncio.sleep(0.2)
    assert (turn.done(), office.board.of(UID)) == (False, [])
    for _, writer in kept:
        writer.close()
    async with asyncio.timeout(10):
        assert (await turn)[0] == 200


async def test_who_does_not_shake_hands_is_not_waited_for(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.2)
    kept = [await asyncio.open_connection("localhost", office.port) for _ in range(2)]
    async with asyncio.timeout(10):
        assert (await office.post(GOOD))[0] == 200
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
async def test_nonsense_on_the_wire_harms_nobody(
    office: Office, caplog: pytest.LogCaptureFixture, *, sent: bytes, tls: bool
) -> None:
    """Neither a traceback, nor a report that is lost for it."""
    reader, writer = await asyncio.open_connection("localhost", office.port, ssl=office.client if tls else None)
    writer.write(sent.replace(b"TOKEN", office.token().encode()))
    if tls:
        await writer.drain()
        await asyncio.sleep(0.05)
    writer.close()
    assert await office.post(GOOD) == (200, {"next": 5.0})
    await asyncio.sleep(0.05)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert reader is not None


async def test_a_renewed_certificate_is_shown(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RENEWAL_SECONDS", 0.05)
    async with office.coordinator.serve("127.0.0.1", 0) as port:
        office.port = port
        renewed = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        renewed.load_verify_locations(cadata=certificate(tmp_path))

        async def shown() -> bool:
            try:
                return (await office.post(GOOD, ssl=renewed))[0] == 200
            except aiohttp.ClientError:
                return False

        async with asyncio.timeout(10):
            while not await shown():  # noqa: ASYNC110 - the files are looked at now and then
                await asyncio.sleep(0.02)


async def test_an_error_of_our_own_is_told(
    office: Office, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(*_: object) -> float:
        raise RuntimeError("boom")

    monkeypatch.setattr(Board, "accept", accept)
    with pytest.raises(aiohttp.ContentTypeError):
        await office.post(GOOD)
    assert "RuntimeError: boom" in caplog.text
