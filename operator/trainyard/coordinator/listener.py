"""A port with bounds: so many connections at a time, each for so long. Whoever holds on to them keeps nobody else's file descriptors."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from typing_extensions import override

MOST_CONNECTIONS = 1024
CONNECTION_SECONDS = 20.0
"""How long a connection may last: a report takes milliseconds."""
HANDSHAKE_SECONDS = 5.0
SWEEP_SECONDS = 5.0


class _Full(asyncio.Protocol):
    """What a connection gets for which there is no room."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@asynccontextmanager
async def listen(runner: web.BaseRunner, host: str, port: int, tls: ssl.SSLContext) -> AsyncIterator[int]:
    """Serve the runner's application while inside. Yields the port. Raises OSError."""
    loop = asyncio.get_running_loop()
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is not set up")

    def protocol() -> asyncio.Protocol:
        if len(server.connections) >= MOST_CONNECTIONS:
            return _Full()
        return server()

    listening = await loop.create_server(
        protocol, host, port, ssl=tls, ssl_handshake_timeout=HANDSHAKE_SECONDS, backlog=MOST_CONNECTIONS
    )
    sweeping = loop.create_task(_sweep(server))
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        sweeping.cancel()
        listening.close()


async def _sweep(server: web.Server) -> None:
    """Close the connections that have lasted too long."""
    since: dict[Any, float] = {}
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now = time.monotonic()
        since = {each: since.get(each, now) for each in server.connections}
        for each, first_seen in since.items():
            if now - first_seen >= CONNECTION_SECONDS:
                each.force_close()
