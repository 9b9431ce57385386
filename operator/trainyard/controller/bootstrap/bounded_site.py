"""Serve plain HTTP to anybody, at a bounded cost: one request a connection, few connections, and few of each address."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from trainyard.coordinator.address import open_listening_socket
from trainyard.coordinator.connection_limits import plain_address
from trainyard.coordinator.request_limits import RateLimits
from trainyard.coordinator.wire_log import wire_log

_LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""Beyond them the oldest connection is closed: it has had the most time."""
MAX_PER_ADDRESS = 8
ADDRESS_CONNECTIONS_PER_SECOND, ADDRESS_BURST = 5.0, 40.0
"""New connections of each address. The kubelet opens less than one a second, and Prometheus fewer."""
ACCEPT_RETRY_SECONDS = 1.0


@asynccontextmanager
async def serve_bounded(application: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve the application while inside. Yields the port. Raises OSError and UnicodeError."""
    application.on_response_prepare.append(_close_after_response)
    runner = web.AppRunner(application, access_log=None, logger=wire_log(__name__))
    await runner.setup()
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is not set up")
    try:
        with open_listening_socket(host, port) as listening:
            accepting = asyncio.create_task(_accept(listening, server))
            try:
                yield listening.getsockname()[1]
            finally:
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)
    finally:
        await runner.cleanup()


async def _close_after_response(_: web.Request, response: web.StreamResponse) -> None:
    # The limits count connections: another request needs another one.
    response.force_close()


async def _accept(listening: socket.socket, server: web.Server) -> None:
    """Accept connections for ever."""
    loop = asyncio.get_running_loop()
    rates = RateLimits(ADDRESS_CONNECTIONS_PER_SECOND, ADDRESS_BURST, time.monotonic)
    handlers: dict[web.RequestHandler, str] = {}
    while True:
        try:
            connection, (source, *_) = await loop.sock_accept(listening)
        except OSError as error:
            _LOG.warning(f"cannot accept HTTP connections, retrying error={str(error)!r}")
            await asyncio.sleep(ACCEPT_RETRY_SECONDS)
            continue
        address = plain_address(source)
        handlers = {handler: its for handler, its in handlers.items() if handler.transport is not None}
        if [*handlers.values()].count(address) >= MAX_PER_ADDRESS or rates.take(address) > 0.0:
            connection.close()
            # `sock_accept` does not yield while connections are pending: a flood would block the event loop.
            await asyncio.sleep(0)
            continue
        if len(handlers) >= MAX_CONNECTIONS:
            next(iter(handlers)).force_close()
        if handler := await _connected(server, connection):
            handlers[handler] = address


async def _connected(server: web.Server, connection: socket.socket) -> web.RequestHandler | None:
    """Return the handler of a connection; None where the connection is lost already."""
    handler = server()
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: handler, connection)
    except OSError:
        connection.close()
        return None
    return handler
