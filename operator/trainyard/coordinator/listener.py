"""A TLS listener with limits on unauthenticated connections (`connection_limits`), and on their idle time.

An authenticated agent's connection may stay open: one for each pod.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from trainyard.coordinator.address import open_listening_socket
from trainyard.coordinator.connection_limits import ConnectionLimits, Refusal, Stranger, plain_address

_LOG = logging.getLogger(__name__)

UNAUTHENTICATED_IDLE_SECONDS = 5.0
"""How long an unauthenticated connection may stay without a request."""
TLS_HANDSHAKE_SECONDS = 5.0
TCP_KEEPALIVE_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""The kernels at both ends probe each other: a node that vanished is noticed within 11 seconds, without work in
either program."""
TLS_SHUTDOWN_SECONDS = 1.0
"""How long the other end may take to close its side of a TLS connection."""
SWEEP_SECONDS = 1.0
FULL_POLL_SECONDS = 0.01
ACCEPT_RETRY_SECONDS = 1.0


class AuthenticatedConnections:
    """The connections whose agents have proved which pod they are."""

    def __init__(self, on_disconnect: Callable[[str, str], object]) -> None:
        """`on_disconnect` is called with job and pod shortly after the last connection of a pod is gone."""
        self._on_disconnect = on_disconnect
        self._by_pod: dict[tuple[str, str], asyncio.BaseProtocol] = {}
        self.connections: set[asyncio.BaseProtocol] = set()
        self.serving: set[asyncio.BaseProtocol] = set()
        """All connections with a request in progress, unauthenticated ones included: requests have limits of their
        own."""
        self.receiving: set[asyncio.BaseProtocol] = set()
        """Those of them whose request has not arrived as a whole. They give way like idle ones: its sender sets the pace."""

    @contextmanager
    def request_in_progress(self, connection: asyncio.BaseProtocol) -> Iterator[None]:
        """Mark the connection as serving a request while inside."""
        self.serving.add(connection)
        try:
            yield
        finally:
            self.serving.discard(connection)

    @contextmanager
    def body_in_transit(self, connection: asyncio.BaseProtocol) -> Iterator[None]:
        """Mark the connection as receiving the body of its request while inside."""
        self.receiving.add(connection)
        try:
            yield
        finally:
            self.receiving.discard(connection)

    def add(self, job: str, pod: str, connection: web.RequestHandler) -> None:
        """Register the connection of a pod, and close the one that the pod had before."""
        before = self._by_pod.get((job, pod))
        if before is not connection and isinstance(before, web.RequestHandler):
            before.force_close()
            self.connections.discard(before)
        self._by_pod[job, pod] = connection
        self.connections.add(connection)

    def remove(self, connection: web.RequestHandler) -> None:
        """Remove a connection that is gone."""
        self.connections.discard(connection)

    def retain(self, existing: AbstractSet[asyncio.BaseProtocol]) -> None:
        """Remove all connections that are not among the `existing` ones."""
        self.connections &= existing
        for (job, pod), connection in [*self._by_pod.items()]:
            if connection not in self.connections:
                del self._by_pod[job, pod]
                self._on_disconnect(job, pod)


@dataclass(frozen=True, slots=True)
class Admission:
    """Which connections are admitted, and who learns of the others."""

    authenticated: AuthenticatedConnections
    limits: ConnectionLimits
    on_full: Callable[[], object]
    """Called again and again while no connection is accepted."""
    on_turned_away: Callable[[str], object]
    """Called with the address of a connection that is closed because of a limit."""


@asynccontextmanager
async def listen(
    runner: web.BaseRunner, host: str, port: int, tls: ssl.SSLContext, admission: Admission
) -> AsyncIterator[int]:
    """Serve the runner's application while inside. Yields the port. Raises OSError and UnicodeError."""
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is not set up")
    with open_listening_socket(host, port) as listening:
        acceptor = _ConnectionAcceptor(listening, server, tls, admission)
        tasks = [
            asyncio.create_task(coroutine) for coroutine in (acceptor.run(), _sweep(server, admission.authenticated))
        ]
        try:
            yield listening.getsockname()[1]
        finally:
            for task in (*tasks, *acceptor.handshakes):
                task.cancel()
            await asyncio.gather(*tasks, *acceptor.handshakes, return_exceptions=True)


class _ConnectionAcceptor:
    """Accepts connections up to the limits."""

    def __init__(self, listening: socket.socket, server: web.Server, tls: ssl.SSLContext, admission: Admission) -> None:
        self._listening, self._server, self._tls = listening, server, tls
        self._authenticated, self._limits = admission.authenticated, admission.limits
        self._on_full, self._on_turned_away = admission.on_full, admission.on_turned_away
        self.handshakes: dict[asyncio.Task[None], Stranger] = {}
        self._accepted: dict[web.RequestHandler, Stranger] = {}

    async def run(self) -> None:
        """Accept connections for ever."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (source, *_) = await loop.sock_accept(self._listening)
            except OSError as error:
                # For example too many open files, which this listener does not cause.
                _LOG.warning(f"cannot accept connections of agents, retrying error={str(error)!r}")
                self._on_full()
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            address = plain_address(source)
            try:
                admitted = self._limits.is_within_rate(address) and await self._has_room(address)
            except asyncio.CancelledError:
                connection.close()
                raise
            if not admitted:
                connection.close()
                self._on_turned_away(address)
                # `sock_accept` does not yield while connections are pending: a flood would block the event loop.
                await asyncio.sleep(0)
                continue
            for level, option, value in TCP_KEEPALIVE_OPTIONS:
                connection.setsockopt(level, option, value)
            task = asyncio.create_task(self._shake_hands(connection, address))
            self.handshakes[task] = Stranger(address, self._limits.clock(), task.cancel)
            task.add_done_callback(self.handshakes.pop)

    async def _has_room(self, address: str) -> bool:
        """Return whether a new connection of this address may stay, and close the one that gives way to it.

        Where it has to wait, those behind it wait in the kernel's backlog, at no cost to this process.
        """
        while True:
            match self._limits.make_room(address, self._strangers()):
                case None:
                    return True
                case Refusal.CLOSE:
                    return False
                case Refusal.WAIT:
                    self._on_full()
                    await asyncio.sleep(FULL_POLL_SECONDS)
                case Stranger() as stranger:
                    stranger.close()
                    self._on_turned_away(stranger.address)
                    # A cancelled handshake ends in the next round of the event loop.
                    await asyncio.sleep(0)
                    return True

    def _strangers(self) -> list[Stranger]:
        """Return the unauthenticated connections."""
        # Most of the connections in these sets wait in a long poll: no set is made of them for each new connection.
        authenticated, receiving = self._authenticated.connections, self._authenticated.receiving
        serving = self._authenticated.serving
        self._accepted = {
            handler: stranger
            for handler, stranger in self._accepted.items()
            if handler.transport is not None and handler not in authenticated
        }
        for handler, stranger in self._accepted.items():
            stranger.receiving = handler in receiving
            stranger.serving = handler in serving and not stranger.receiving
        return [*self.handshakes.values(), *self._accepted.values()]

    async def _shake_hands(self, connection: socket.socket, address: str) -> None:
        # Created here and not read from the result: uvloop returns a protocol of its own.
        handler, since = self._server(), self._limits.clock()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: handler,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
            )
            self._accepted[handler] = Stranger(address, since, handler.force_close)
        except (OSError, EOFError):
            # The client speaks no TLS, distrusts the certificate or gave up: its own log has the reason.
            connection.close()


async def _sweep(server: web.Server, authenticated: AuthenticatedConnections) -> None:
    """Close unauthenticated connections that have been idle for too long."""
    since: dict[Any, float] = {}
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now, existing = time.monotonic(), set(server.connections)
        authenticated.retain(existing)
        idle = existing - authenticated.connections - authenticated.serving
        since = {handler: since.get(handler, now) for handler in idle}
        for handler, first_seen in since.items():
            if now - first_seen >= UNAUTHENTICATED_IDLE_SECONDS:
                handler.force_close()
