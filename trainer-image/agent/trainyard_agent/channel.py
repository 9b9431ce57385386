"""Hold one open connection to the operator, in which a request may be pending for long. Another thread can call it back at any time."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from trainyard_agent.coordinator import UNAVAILABLE, Address, Answer, Coordinator, receive
from trainyard_agent.errors import CalledBackError, NoAnswerError, UntrustedError
from trainyard_agent.keepalive import keep_alive
from trainyard_agent.protocol import SYNC_PATH

CONNECT_SECONDS = 5.0
HOLD_SECONDS = 90.0
"""How long an answer may take: the operator answers after a minute at the latest."""


class Channel:
    """`ask` belongs to one thread, `call_back` to any."""

    def __init__(self, operator: Coordinator) -> None:
        self._operator = operator
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()
        self._pending: socket.socket | None = None
        self._is_called_back = False

    @property
    def is_pending(self) -> bool:
        """Whether the operator holds a request."""
        return self._pending is not None

    def call_back(self) -> None:
        """Give up the pending request, if there is one."""
        # The lock: a socket that is closed meanwhile may be another's by then.
        with self._lock:
            if self._pending is not None:
                self._is_called_back = True
                with suppress(OSError):
                    # Not SSLSocket's own, which changes what the other thread reads from.
                    socket.socket.shutdown(self._pending, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, body: Callable[[], Mapping[str, object]]) -> Answer:
        """Return the leader's answer. `body` is called at the last moment. Raises NoAnswerError, CalledBackError, ValueError."""
        if self._connection is not None:
            try:
                answer = self._request(self._connection, body)
            except (OSError, http.client.HTTPException) as error:
                self._operator.mark_unreachable(self._operator.last)
                raise NoAnswerError(str(error) or type(error).__name__) from error
            if answer.status != UNAVAILABLE:
                return answer
        return self._find_leader(body)

    def _find_leader(self, body: Callable[[], Mapping[str, object]]) -> Answer:
        refused, unknown, untrusted, why = "", None, False, "its name has no address"
        for address in self._operator.addresses():
            try:
                answer = self._request(self._open(address), body)
            except (OSError, http.client.HTTPException) as error:
                self._operator.mark_unreachable(address)
                untrusted = untrusted or isinstance(error, ssl.SSLCertVerificationError)
                why = str(error) or type(error).__name__
                continue
            if answer.status == http.HTTPStatus.NOT_FOUND:
                # An older process, which may be a standby while the leader is new.
                unknown = answer
                continue
            if answer.status != UNAVAILABLE:
                self._operator.mark_leader(address)
                return answer
            why = answer.text
            refused = refused or (why if answer.reason != "NotLeading" else "")
            unknown = None
        if unknown is not None:
            return unknown
        raise UntrustedError(why) if untrusted else NoAnswerError(refused or why)

    def _open(self, address: Address) -> http.client.HTTPConnection:
        self.close()
        connection = self._connection = self._operator.connect(address, CONNECT_SECONDS)
        keep_alive(connection.sock)
        connection.sock.settimeout(HOLD_SECONDS)
        return connection

    def _request(self, connection: http.client.HTTPConnection, body: Callable[[], Mapping[str, object]]) -> Answer:
        keeps = False
        try:
            with self._can_be_called_back(connection.sock):
                self._operator.send(connection, SYNC_PATH, json.dumps(body(), allow_nan=False).encode())
                answer = receive(connection)
            keeps = answer.status == http.HTTPStatus.OK and connection.sock is not None
            return answer
        finally:
            if not keeps:
                self.close()

    @contextmanager
    def _can_be_called_back(self, connected: socket.socket) -> Iterator[None]:
        with self._lock:
            self._pending, self._is_called_back = connected, False
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self._is_called_back:
                raise CalledBackError from error
            raise
        finally:
            with self._lock:
                self._pending = None
