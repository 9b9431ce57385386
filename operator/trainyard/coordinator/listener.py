"""A TLS listener with limits on unauthenticated connections: their number, their number per address, and their idle
time.

Connections above the limit wait in the kernel's backlog, at no cost to this process. An authenticated agent's
connection may stay open: one for each pod.
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

from trainyard.coordinator.address import open_listening_socket

_LOG = logging.getLogger(__name__)

MAX_UNAUTHENTICATED_CONNECTIONS = 128
"""Handshakes included. A report takes one or two milliseconds, so all of them delay other work by a fraction of a
second."""
MAX_UNAUTHENTICATED_PER_ADDRESS = 16
"""So that one address cannot lock out all others. Further connections of it are closed: its agents retry."""
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

    @contextmanager
    def request_in_progress(self, connection: asyncio.BaseProtocol) -> Iterator[None]:
        """Mark the connection as serving a request while inside."""
        self.serving.add(connection)
        try:
            yield
        finally:
            self.serving.discard(connection)

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


@asynccontextmanager
async def listen(
    runner: web.BaseRunner,
    host: str,
    port: int,
    tls: ssl.SSLContext,
    authenticated: AuthenticatedConnections,
    on_full: Callable[[], object],
) -> AsyncIterator[int]:
    """Serve the runner's application while inside. Yields the port. Raises OSError and UnicodeError.

    `on_full` is called again and again while no connection is accepted.
    """
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is not set up")
    with open_listening_socket(host, port) as listening:
        acceptor = _ConnectionAcceptor(listening, server, tls, authenticated, on_full)
        tasks = [asyncio.create_task(coroutine) for coroutine in (acceptor.run(), _sweep(server, authenticated))]
        try:
            yield listening.getsockname()[1]
        finally:
            for task in (*tasks, *acceptor.handshakes):
                task.cancel()
            await asyncio.gather(*tasks, *acceptor.handshakes, return_exceptions=True)


class _ConnectionAcceptor:
    """Accepts connections up to the limits."""

    def __init__(
        self,
        listening: socket.socket,
        server: web.Server,
        tls: ssl.SSLContext,
        authenticated: AuthenticatedConnections,
        on_full: Callable[[], object],
    ) -> None:
        self._listening, self._server, self._tls = listening, server, tls
        self._authenticated, self._on_full = authenticated, on_full
        self.handshakes: dict[asyncio.Task[None], str] = {}
        self._accepted: dict[web.RequestHandler, str] = {}

    async def run(self) -> None:
        """Accept connections for ever."""
        loop = asyncio.get_running_loop()
        while True:
            while len(self._unauthenticated_addresses()) >= MAX_UNAUTHENTICATED_CONNECTIONS:
                self._on_full()
                await asyncio.sleep(FULL_POLL_SECONDS)
            try:
                connection, (address, *_) = await loop.sock_accept(self._listening)
            except OSError as error:
                # For example too many open files, which this listener does not cause.
                _LOG.warning(f"cannot accept connections of agents, retrying error={str(error)!r}")
                self._on_full()
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            if self._unauthenticated_addresses().count(address) >= MAX_UNAUTHENTICATED_PER_ADDRESS:
                # No `on_full`: otherwise one client could delay the detection of all lost agents.
                connection.close()
                # `sock_accept` does not yield while connections are pending: a flood would block the event loop.
                await asyncio.sleep(0)
                continue
            for level, option, value in TCP_KEEPALIVE_OPTIONS:
                connection.setsockopt(level, option, value)
            task = asyncio.create_task(self._shake_hands(connection, address))
            self.handshakes[task] = address
            task.add_done_callback(self.handshakes.pop)

    def _unauthenticated_addresses(self) -> list[str]:
        """Return the addresses of unauthenticated connections, one entry for each connection."""
        authenticated = self._authenticated.connections
        self._accepted = {
            handler: address
            for handler, address in self._accepted.items()
            if handler.transport is not None and handler not in authenticated
        }
        return [*self.handshakes.values(), *self._accepted.values()]

    async def _shake_hands(self, connection: socket.socket, address: str) -> None:
        # Created here and not read from the result: uvloop returns a protocol of its own.
        handler = self._server()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: handler,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
            )
            self._accepted[handler] = address
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
