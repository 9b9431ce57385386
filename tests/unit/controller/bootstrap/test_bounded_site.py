"""Plain HTTP for anybody: bounded connections, and no answer from a frozen event loop."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
import uvloop
from aiohttp import web

from trainyard.controller.bootstrap import bounded_site
from trainyard.controller.bootstrap.bounded_site import serve_bounded

GET = b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n"


def application() -> web.Application:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    made = web.Application()
    made.add_routes([web.get("/ok", ok)])
    return made


async def status(port: int) -> int:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/ok") as answer:
        return answer.status


@asynccontextmanager
async def idle(port: int, address: str, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            stack.callback(writer.close)
            readers.append(reader)
        yield readers


async def test_idle_connections_lock_out_no_other_address() -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        port = await stack.enter_async_context(serve_bounded(application(), "127.0.0.1", 0))
        readers = []
        for n in range(3 * bounded_site.MAX_CONNECTIONS // bounded_site.MAX_PER_ADDRESS):
            readers += await stack.enter_async_context(idle(port, f"127.0.2.{n}", bounded_site.MAX_PER_ADDRESS))
        assert await status(port) == 200
        assert await readers[0].read() == b""
        assert not readers[-1].at_eof()


async def test_address_has_few_connections() -> None:
    async with (
        asyncio.timeout(20),
        serve_bounded(application(), "127.0.0.1", 0) as port,
        idle(port, "127.0.0.9", bounded_site.MAX_PER_ADDRESS) as kept,
    ):
        async with idle(port, "127.0.0.9", 1) as beyond:
            assert await beyond[0].read() == b""
        assert not any(reader.at_eof() for reader in kept)
        assert await status(port) == 200


async def test_address_has_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_site, "ADDRESS_BURST", 3.0)
    monkeypatch.setattr(bounded_site, "ADDRESS_CONNECTIONS_PER_SECOND", 0.01)
    async with asyncio.timeout(20), serve_bounded(application(), "127.0.0.1", 0) as port:
        assert [await status(port) for _ in range(3)] == [200, 200, 200]
        with pytest.raises(aiohttp.ClientError):
            await status(port)
        async with idle(port, "127.0.0.9", 1) as other:
            assert not other[0].at_eof()


async def test_connection_has_one_request() -> None:
    async with asyncio.timeout(20), serve_bounded(application(), "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + GET)
        assert (await reader.read()).count(b"200 OK") == 1
        writer.close()


def test_frozen_event_loop_fails_the_probe() -> None:
    """The port of the probes is served by the loop that they are about."""
    found, ended = list[int](), threading.Event()

    async def serve() -> None:
        async with serve_bounded(application(), "127.0.0.1", 0) as port:
            found.append(port)
            await asyncio.to_thread(ended.wait, 20)

    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()

    async def probe() -> int:
        async with asyncio.timeout(0.5):
            return await status(found[0])

    try:
        while not found:
            time.sleep(0.01)
        assert asyncio.run(probe()) == 200
        thaw = threading.Event()
        loop.call_soon_threadsafe(thaw.wait, 10)
        with pytest.raises(TimeoutError):
            asyncio.run(probe())
        thaw.set()
    finally:
        ended.set()
        thread.join(10)
        loop.close()


async def test_malformed_requests_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(20), serve_bounded(application(), "127.0.0.1", 0) as port:
        for request in (
            b"GET /ok HTTP/1.1\r\n\r\n",
            b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n",
            b"GET /ok HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            assert (await reader.read()).startswith(b"HTTP/1.0 400 ")
            writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_errors_of_this_program_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: web.Request) -> web.Response:
        raise RuntimeError("of this program")

    failing = web.Application()
    failing.add_routes([web.get("/ok", broken)])
    async with asyncio.timeout(20), serve_bounded(failing, "127.0.0.1", 0) as port:
        assert await status(port) == 500
    assert "RuntimeError: of this program" in caplog.text
