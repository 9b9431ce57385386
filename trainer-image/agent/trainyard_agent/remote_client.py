"""`remote-start [options of ssh] HOST COMMAND …`: have the agent of another worker start a daemon of MPI, and exit as it does.

MPI launchers call it in the place of ssh. The files of the attempt say where the agents are, and hold the secret.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from trainyard_agent.keepalive import keep_alive
from trainyard_agent.mpi import Members, read_members
from trainyard_agent.remote_lines import (
    MAX_LINE_BYTES,
    NONCE_BYTES,
    Action,
    LineError,
    Lines,
    Side,
    nonce_line,
    parse_nonce,
)

UNREACHABLE_CODE = 255
"""As ssh has it."""
PATIENCE_SECONDS = 60.0
"""The agent of another worker may receive the order to start a moment later."""
PAUSE_SECONDS = 0.2
CONNECT_SECONDS = 5.0
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
OPTIONS_WITH_VALUE = frozenset("bcDeEFiIJLlmOopQRSwW")
"""Options of ssh that take the next word."""


class RefusedError(Exception):
    """The agent does not start the command; the message says why."""


class Connection:
    """One request to the agent of another worker. Raises OSError and LineError."""

    def __init__(self, members: Members, address: str, seconds: float) -> None:
        self._socket = socket.create_connection((address, members.port), timeout=seconds)
        try:
            keep_alive(self._socket)
            self._buffer = b""
            own = os.urandom(NONCE_BYTES)
            self._socket.sendall(nonce_line(own))
            self._lines = Lines(members.secret, own, parse_nonce(self._line()), Side.CALLER)
        except BaseException:
            self.close()
            raise

    def send(self, fields: Mapping[str, object]) -> None:
        """Send a line."""
        self._socket.sendall(self._lines.sealed(fields))

    def receive(self) -> dict[str, Any]:
        """Return the next line."""
        return self._lines.opened(self._line())

    def wait_for_ever(self) -> None:
        """Have `receive` wait as long as the daemon runs."""
        self._socket.settimeout(None)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the agent has closed the connection")
            self._buffer += data
            if len(self._buffer) > MAX_LINE_BYTES:
                raise LineError("the line is too long")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


@contextmanager
def connected(members: Members, address: str, seconds: float = CONNECT_SECONDS) -> Iterator[Connection]:
    """Yield a connection to the agent at this address. Raises OSError and LineError."""
    made = Connection(members, address, seconds)
    try:
        yield made
    finally:
        made.close()


def ask(members: Members, address: str, action: Action, seconds: float) -> dict[str, Any]:
    """Return what an agent answers to a question. Raises OSError and LineError."""
    with connected(members, address, seconds) as connection:
        connection.send({"action": action.value})
        return connection.receive()


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Start the command at the host. Returns its exit code; 255 where it cannot be started, or its worker is lost."""
    host, words = split_arguments(arguments)
    try:
        members = read_members(folder)
        # Launchers may shorten the name.
        found = [address for name, address in members.hosts.items() if host in {name, name.partition(".")[0], address}]
        if found and words:
            return _run(members, found[0], words)
        why = "it is no worker of this job, or there is no command"
    except (OSError, ValueError, LineError, RefusedError) as error:
        why = str(error)
    sys.stderr.write(f"remote-start: {host}: {why}\n")
    return UNREACHABLE_CODE


def split_arguments(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the host and the words of the command, without the options of ssh before and after the host."""
    left, host = list(arguments), ""
    while left and (left[0].startswith("-") or not host):
        word = left.pop(0)
        if not word.startswith("-"):
            host = word.rpartition("@")[2]
        elif word[1:] in OPTIONS_WITH_VALUE and left:
            left.pop(0)
    return host, left


def _run(members: Members, address: str, words: Sequence[str]) -> int:
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with connected(members, address) as connection:
                connection.send({"action": Action.START.value, "words": [*words]})
                answer = connection.receive()
                if "refused" in answer:
                    raise RefusedError(answer["refused"])
                return _follow(connection)
        except (OSError, LineError):  # noqa: PERF203 - each try takes much longer
            # It waits for its order, or does not listen yet. A daemon that was started is not started again.
            if time.monotonic() >= end:
                raise
            time.sleep(PAUSE_SECONDS)


def _follow(connection: Connection) -> int:
    """Wait for the end of the daemon, and pass signals on to it."""
    connection.wait_for_ever()
    with _forwarding(lambda number: connection.send({"signal": number})):
        try:
            answer = connection.receive()
        except (OSError, LineError) as error:
            raise RefusedError(f"the worker is lost: {error}") from error
    sys.stderr.write(str(answer.get("text", "")))
    code = answer.get("exit")
    return code if type(code) is int else UNREACHABLE_CODE


@contextmanager
def _forwarding(send: Callable[[int], object]) -> Iterator[None]:
    def forward(number: int, _: object) -> None:
        with suppress(OSError):
            send(number)

    before = [(number, signal.signal(number, forward)) for number in FORWARDED]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def exit_with(code: int) -> NoReturn:
    """End this program without the clean-up of the interpreter, which takes its time."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
