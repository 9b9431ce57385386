"""A port with bounds: so many connections of strangers at a time, each for so long. What comes beyond waits in the kernel, and costs this
process nothing. Those of agents that have shown who they are may last: one for each pod.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

_LOG = logging.getLogger(__name__)

MOST_CONNECTIONS = 128
"""Of strangers, handshakes included. A report takes a millisecond or two, so that others' work waits a fraction of a second for all of them."""
BACKLOG = 1024
CONNECTION_SECONDS = 20.0
"""How long a connection may last."""
HANDSHAKE_SECONDS = 5.0
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""The kernels at both ends ask each other whether they are still there: a node that is gone is noticed within 11 seconds, at no cost to
either program."""
SWEEP_SECONDS = 5.0
LOOK_AGAIN_SECONDS = 0.01


class Guests:
    """The connections of those that have shown which pod they are."""

    def __init__(self, hung_up: Callable[[str, str], object]) -> None:
        """`hung_up` is called with job and pod where the last connection of a pod is gone, some seconds later."""
        self._hung_up = hung_up
        self._by_pod: dict[tuple[str, str], asyncio.BaseProtocol] = {}
        self.connections: set[asyncio.BaseProtocol] = set()

    def welcome(self, job: str, pod: str, connection: web.RequestHandler) -> None:
        """This is a connection of that pod. One that it had before is closed."""
        before = self._by_pod.get((job, pod))
        if before is not connection and isinstance(before, web.RequestHandler):
            before.force_close()
            self.connections.discard(before)
        self._by_pod[job, pod] = connection
        self.connections.add(connection)

    def leaves(self, connection: web.RequestHandler) -> None:
        """It is gone: its room is free at once."""
        self.connections.discard(connection)

    def part(self, there: AbstractSet[asyncio.BaseProtocol]) -> None:
        """Forget those that are not `there` any more."""
        self.connections &= there
        for (job, pod), each in [*self._by_pod.items()]:
            if each not in self.connections:
                del self._by_pod[job, pod]
                self._hung_up(job, pod)


@asynccontextmanager
async def listen(
    runner: web.BaseRunner, host: str, port: int, tls: ssl.SSLContext, guests: Guests
) -> AsyncIterator[int]:
    """Serve the runner's application while inside. Yields the port. Raises OSError."""
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is not set up")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=BACKLOG) as listening:
        listening.settimeout(0)
        door = _Door(listening, server, tls, guests)
        tasks = [asyncio.create_task(part) for part in (door.keep(), _sweep(server, guests))]
        try:
            yield listening.getsockname()[1]
        finally:
            for task in (*tasks, *door.handshakes):
                task.cancel()
            await asyncio.gather(*tasks, *door.handshakes, return_exceptions=True)


class _Door:
    """Lets connections in, as long as there is room."""

    def __init__(self, listening: socket.socket, server: web.Server, tls: ssl.SSLContext, guests: Guests) -> None:
        self._listening, self._server, self._tls, self._guests = listening, server, tls, guests
        self.handshakes: set[asyncio.Task[None]] = set()

    async def keep(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            while self._strangers >= MOST_CONNECTIONS:  # noqa: ASYNC110 - only while it is full
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                # Too many open files, say: those are not this port's.
                _LOG.warning(f"no connection of an agent can be accepted for now: {error}")
                await asyncio.sleep(1)
                continue
            for level, option, value in KEEPALIVE:
                connection.setsockopt(level, option, value)
            task = asyncio.create_task(self._shake_hands(connection))
            self.handshakes.add(task)
            task.add_done_callback(self.handshakes.discard)

    @property
    def _strangers(self) -> int:
        return len(self.handshakes) + len(self._server.connections) - len(self._guests.connections)

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._server, connection, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, EOFError):
            # Whoever speaks no TLS, trusts another authority, or thinks better of it: their agent's log says so.
            connection.close()


async def _sweep(server: web.Server, guests: Guests) -> None:
    """Close the connections of strangers that have lasted too long."""
    since: dict[Any, float] = {}
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now, there = time.monotonic(), set(server.connections)
        guests.part(there)
        since = {each: since.get(each, now) for each in there - guests.connections}
        for each, first_seen in since.items():
            if now - first_seen >= CONNECTION_SECONDS:
                each.force_close()
