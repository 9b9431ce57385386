"""A port with bounds: so many connections of strangers at a time, so many of each address, each for so long. What comes beyond waits in the
kernel, and costs this process nothing. Those of agents that have shown who they are may last: one for each pod.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web

from trainyard.coordinator.address import bound

_LOG = logging.getLogger(__name__)

MOST_CONNECTIONS = 128
"""Of strangers, handshakes included. A report takes a millisecond or two, so that others' work waits a fraction of a second for all of them."""
MOST_OF_AN_ADDRESS = 16
"""Of those, so that one address cannot keep all others out. What it has beyond that is closed: its agents try again."""
CONNECTION_SECONDS = 5.0
"""How long a stranger may ask for nothing."""
HANDSHAKE_SECONDS = 5.0
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""The kernels at both ends ask each other whether they are still there: a node that is gone is noticed within 11 seconds, at no cost to
either program."""
GOODBYE_SECONDS = 1.0
"""How long the other end may take to agree that a connection is closed."""
SWEEP_SECONDS = 1.0
LOOK_AGAIN_SECONDS = 0.01


class Guests:
    """The connections of those that have shown which pod they are."""

    def __init__(self, hung_up: Callable[[str, str], object]) -> None:
        """`hung_up` is called with job and pod where the last connection of a pod is gone, a moment later."""
        self._hung_up = hung_up
        self._by_pod: dict[tuple[str, str], asyncio.BaseProtocol] = {}
        self.connections: set[asyncio.BaseProtocol] = set()
        self.asking: set[asyncio.BaseProtocol] = set()
        """Those of strangers too whose request is under way: there are bounds for that."""

    @contextmanager
    def asks(self, connection: asyncio.BaseProtocol) -> Iterator[None]:
        """While a request is under way."""
        self.asking.add(connection)
        try:
            yield
        finally:
            self.asking.discard(connection)

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
    runner: web.BaseRunner, host: str, port: int, tls: ssl.SSLContext, guests: Guests, full: Callable[[], object]
) -> AsyncIterator[int]:
    """Serve the runner's application while inside. Yields the port. Raises OSError and UnicodeError.

    `full` is called again and again while nobody is let in.
    """
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is not set up")
    with bound(host, port) as listening:
        door = _Door(listening, server, tls, guests, full)
        tasks = [asyncio.create_task(part) for part in (door.keep(), _sweep(server, guests))]
        try:
            yield listening.getsockname()[1]
        finally:
            for task in (*tasks, *door.handshakes):
                task.cancel()
            await asyncio.gather(*tasks, *door.handshakes, return_exceptions=True)


class _Door:
    """Lets connections in, as long as there is room."""

    def __init__(
        self,
        listening: socket.socket,
        server: web.Server,
        tls: ssl.SSLContext,
        guests: Guests,
        full: Callable[[], object],
    ) -> None:
        self._listening, self._server, self._tls, self._guests, self._full = listening, server, tls, guests, full
        self.handshakes: dict[asyncio.Task[None], str] = {}
        self._inside: dict[web.RequestHandler, str] = {}

    async def keep(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            while len(self._strangers()) >= MOST_CONNECTIONS:
                self._full()
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
            try:
                connection, (address, *_) = await loop.sock_accept(self._listening)
            except OSError as error:
                # Too many open files, say: those are not this port's.
                _LOG.warning(f"no connection of an agent can be accepted for now: {error}")
                self._full()
                await asyncio.sleep(1)
                continue
            if self._strangers().count(address) >= MOST_OF_AN_ADDRESS:
                # Not `full`: else one stranger could hold up the verdicts on all that are lost.
                connection.close()
                # What is there already is accepted without a wait: a flood would keep all others waiting.
                await asyncio.sleep(0)
                continue
            for level, option, value in KEEPALIVE:
                connection.setsockopt(level, option, value)
            task = asyncio.create_task(self._shake_hands(connection, address))
            self.handshakes[task] = address
            task.add_done_callback(self.handshakes.pop)

    def _strangers(self) -> list[str]:
        """Their addresses."""
        guests = self._guests.connections
        self._inside = {
            each: at for each, at in self._inside.items() if each.transport is not None and each not in guests
        }
        return [*self.handshakes.values(), *self._inside.values()]

    async def _shake_hands(self, connection: socket.socket, address: str) -> None:
        # Made here: uvloop answers with a protocol of its own.
        handler = self._server()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: handler,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=GOODBYE_SECONDS,
            )
            self._inside[handler] = address
        except (OSError, EOFError):
            # Whoever speaks no TLS, trusts another authority, or thinks better of it: their agent's log says so.
            connection.close()


async def _sweep(server: web.Server, guests: Guests) -> None:
    """Close the connections over which strangers have asked for nothing for too long."""
    since: dict[Any, float] = {}
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now, there = time.monotonic(), set(server.connections)
        guests.part(there)
        since = {each: since.get(each, now) for each in there - guests.connections - guests.asking}
        for each, first_seen in since.items():
            if now - first_seen >= CONNECTION_SECONDS:
                each.force_close()
