"""One connection to the operator, kept open, in which a question may wait for long; another thread can call it back at any time."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from trainyard_agent.coordinator import ELSEWHERE, SYNC, Address, Answer, Coordinator, receive
from trainyard_agent.reporter import NoAnswerError

CONNECT_SECONDS = 5.0
HOLD_SECONDS = 90.0
"""How long an answer may take: the operator gives one after a minute."""
KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 11_000))
"""A machine that is gone is noticed within 11 seconds. The last is in milliseconds, and counts from what was sent."""


class CalledBackError(Exception):
    """The question was called back."""


class UntrustedError(NoAnswerError):
    """Nobody has answered, and one has a certificate that no authority of this worker's has signed."""


class Channel:
    """`ask` belongs to one thread, `call_back` to any."""

    def __init__(self, operator: Coordinator) -> None:
        self._operator = operator
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()
        self._waits: socket.socket | None = None
        self._called_back = False

    @property
    def waits(self) -> bool:
        """Whether a question lies with the operator."""
        return self._waits is not None

    def call_back(self) -> None:
        """Give up the question that waits, if one does."""
        # The lock: a socket that is closed meanwhile may be another's by then.
        with self._lock:
            if self._waits is not None:
                self._called_back = True
                with suppress(OSError):
                    # Not SSLSocket's own, which changes what the other thread reads from.
                    socket.socket.shutdown(self._waits, socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, body: Callable[[], Mapping[str, object]]) -> Answer:
        """The answer of the one that leads. `body` is called at the last moment. Raises NoAnswerError, CalledBackError, ValueError."""
        if self._connection is not None:
            try:
                answer = self._question(self._connection, body)
            except (OSError, http.client.HTTPException) as error:
                self._operator.lost(self._operator.last)
                raise NoAnswerError(str(error) or type(error).__name__) from error
            if answer.status != ELSEWHERE:
                return answer
        return self._look_for_the_leader(body)

    def _look_for_the_leader(self, body: Callable[[], Mapping[str, object]]) -> Answer:
        refused, unknown, untrusted, why = "", None, False, "its name has no address"
        for address in self._operator.addresses():
            try:
                answer = self._question(self._open(address), body)
            except (OSError, http.client.HTTPException) as error:
                self._operator.lost(address)
                untrusted = untrusted or isinstance(error, ssl.SSLCertVerificationError)
                why = str(error) or type(error).__name__
                continue
            if answer.status == http.HTTPStatus.NOT_FOUND:
                # An older process, that may stand by while the one that leads is new.
                unknown = answer
                continue
            if answer.status != ELSEWHERE:
                self._operator.found(address)
                return answer
            why = answer.why
            refused = refused or (why if answer.reason != "NotLeading" else "")
            unknown = None
        if unknown is not None:
            return unknown
        raise UntrustedError(why) if untrusted else NoAnswerError(refused or why)

    def _open(self, address: Address) -> http.client.HTTPConnection:
        self.close()
        connection = self._connection = self._operator.connect(address, CONNECT_SECONDS)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):
                connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.sock.settimeout(HOLD_SECONDS)
        return connection

    def _question(self, connection: http.client.HTTPConnection, body: Callable[[], Mapping[str, object]]) -> Answer:
        kept = False
        try:
            with self._can_be_called_back(connection.sock):
                self._operator.send(connection, SYNC, json.dumps(body(), allow_nan=False).encode())
                answer = receive(connection)
            kept = answer.status == http.HTTPStatus.OK and connection.sock is not None
            return answer
        finally:
            if not kept:
                self.close()

    @contextmanager
    def _can_be_called_back(self, connected: socket.socket) -> Iterator[None]:
        with self._lock:
            self._waits, self._called_back = connected, False
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self._called_back:
                raise CalledBackError from error
            raise
        finally:
            with self._lock:
                self._waits = None
