"""Start daemons of MPI for launchers in other workers of the job, and report how they exit. Decides nothing about the attempt.

Used in the main thread alone: the sockets are watched by the group. A caller without the secret of the attempt learns and reaches nothing.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from trainyard_agent import processes
from trainyard_agent.daemon_command import CommandError, DaemonCommand, parse_command
from trainyard_agent.errors import SetUpError
from trainyard_agent.group import Group
from trainyard_agent.missing_programs import missing_fix
from trainyard_agent.mpi import Members
from trainyard_agent.remote_client import FORWARDED
from trainyard_agent.remote_lines import (
    MAX_LINE_BYTES,
    NONCE_BYTES,
    Action,
    LineError,
    Lines,
    Side,
    nonce_line,
    parse_action,
    parse_nonce,
)

MAX_CONNECTIONS = 128
MAX_DAEMONS = 32
"""Daemons that run at the same time: of launchers that a script starts one beside the other."""
REQUEST_SECONDS = 10.0
"""For which a caller may take to say what it asks for."""
PARTING_SECONDS = 10.0
"""For which a daemon may run on after its launcher has gone."""
BACKLOG = 1024
REPORTED_CHARACTERS = 8192
"""Of what a daemon has printed, for the launcher."""


class PeerState(NamedTuple):
    """What a worker answers about its daemons."""

    running: int
    failed: bool


class Caller:
    """A connection to the listener."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection, self.since = connection, now
        self.nonce = os.urandom(NONCE_BYTES)
        self.lines: Lines | None = None
        self.buffer = b""
        self.daemon: int | None = None
        """The PID of the daemon that it has asked for."""


class RemoteStarts:
    """The listener of one attempt. Use it in a `with`. Raises SetUpError where it cannot listen."""

    def __init__(
        self,
        members: Members,
        group: Group,
        start: Callable[[DaemonCommand], int],
        log: Callable[[str], None],
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start`: starts a daemon as a process of the group, and returns its PID. Raises OSError."""
        self._members, self._group, self._start, self._log, self._clock = members, group, start, log, clock
        self._environment = environment
        self._callers: dict[int, Caller] = {}
        self._left: dict[int, float] = {}
        """Daemons whose launcher has gone, and when."""
        self._seen = 0
        """How many exits of the group were looked at."""
        self.has_failed: Callable[[], bool] = lambda: False
        """Returns whether a daemon or a rank of this worker has failed."""
        self.is_finished = False
        """Whether the launcher has reported that it has succeeded."""
        self.lost: set[int] = set()
        """Daemons that were killed because their launcher had gone."""

    def __enter__(self) -> RemoteStarts:  # noqa: PYI034 - Self needs Python 3.11
        address = self._members.hosts[self._members.own]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.setblocking(False)  # noqa: FBT003 - the only argument
            self._listener.bind((address, self._members.port))
            self._listener.listen(BACKLOG)
        except OSError as error:
            self._listener.close()
            fix = "; no other program of the pod, or with hostNetwork of the node, may use this port"
            why = f"cannot listen for launchers in other workers address={address} port={self._members.port}"
            reason = f"{why}: {error.strerror}{fix if error.errno == errno.EADDRINUSE else ''}"
            raise SetUpError(error.errno, reason) from error
        self._group.watch_file(self._listener.fileno(), self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._group.unwatch_file(self._listener.fileno())
        self._listener.close()
        for caller in [*self._callers.values()]:
            self._close(caller)

    def look(self) -> None:
        """Report exits of daemons, end callers that are too slow, and daemons whose launcher has gone."""
        now = self._clock()
        for exited in self._group.exits[self._seen :]:
            self._report_exit(exited.pid, exited.code, exited.output)
        self._seen = len(self._group.exits)
        for caller in [*self._callers.values()]:
            if caller.daemon is None and now - caller.since > REQUEST_SECONDS:
                self._close(caller)
        for pid, since in [*self._left.items()]:
            if pid not in self._group.running_pids:
                del self._left[pid]
            elif now - since > PARTING_SECONDS:
                self._log(f"killing a daemon whose launcher has gone pid={pid}")
                self.lost.add(pid)
                processes.send(signal.SIGKILL, pid)

    def _report_exit(self, pid: int, code: int, output: str) -> None:
        for caller in [*self._callers.values()]:
            if caller.daemon == pid:
                self._send(caller, {"exit": code, "text": output[-REPORTED_CHARACTERS:] if code else ""})
                caller.daemon = None
                self._close(caller)

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)  # noqa: FBT003 - the only argument
            if len(self._callers) >= MAX_CONNECTIONS:
                connection.close()
                return
            caller = Caller(connection, self._clock())
            self._callers[connection.fileno()] = caller
            self._group.watch_file(connection.fileno(), lambda: self._read(caller))
            self._write(caller, nonce_line(caller.nonce))

    def _read(self, caller: Caller) -> None:
        try:
            data = caller.connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.buffer += data
        try:
            while b"\n" in caller.buffer and caller.connection.fileno() in self._callers:
                line, _, caller.buffer = caller.buffer.partition(b"\n")
                self._take(caller, line)
        except LineError:
            # The caller does not learn why: a program of the attempt before, for example, asks again.
            data = b""
        if not data or len(caller.buffer) > MAX_LINE_BYTES:
            self._close(caller)

    def _take(self, caller: Caller, line: bytes) -> None:
        if caller.lines is None:
            caller.lines = Lines(self._members.secret, parse_nonce(line), caller.nonce, Side.AGENT)
            return
        fields = caller.lines.opened(line)
        if caller.daemon is not None:
            number = fields.get("signal")
            if number in FORWARDED:
                processes.send(number, caller.daemon)
            return
        action, words = parse_action(fields)
        if action is Action.START:
            self._start_daemon(caller, words)
            return
        state = PeerState(len(self._group.running_pids), self.has_failed())
        if action is Action.FINISH and not state.running and not state.failed:
            self.is_finished = True
        self._send(caller, state._asdict())
        self._close(caller)

    def _start_daemon(self, caller: Caller, words: Sequence[str]) -> None:
        why = f"{MAX_DAEMONS} daemons run here already"
        program = ""
        try:
            if len(self._group.running_pids) < MAX_DAEMONS:
                daemon = parse_command(words, self._environment)
                program = daemon.words[0]
                caller.daemon = self._start(daemon)
                self._send(caller, {"started": True})
                return
        except CommandError as error:
            why = str(error)
        except OSError as error:
            fix = missing_fix(program) if error.errno == errno.ENOENT else ""
            why = f"{program}: {error.strerror}{fix}"
        reason = f"cannot start a daemon: {why}"
        self._log(reason)
        self._send(caller, {"refused": reason})
        self._close(caller)

    def _send(self, caller: Caller, fields: Mapping[str, object]) -> None:
        if caller.lines is not None:
            self._write(caller, caller.lines.sealed(fields))

    def _write(self, caller: Caller, data: bytes) -> None:
        # What is sent is short. A caller that does not read gets nothing more.
        with suppress(OSError):
            caller.connection.send(data)

    def _close(self, caller: Caller) -> None:
        if self._callers.pop(caller.connection.fileno(), None) is None:
            return
        if caller.daemon is not None:
            self._left[caller.daemon] = self._clock()
        self._group.unwatch_file(caller.connection.fileno())
        caller.connection.close()
