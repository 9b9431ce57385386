"""Run the server of a framework in this pod, below the agent, and a command beside it. What both mean is the subclass's business.

The agent starts such a program as a command that starts ranks itself. It exits as soon as the server is gone, whatever its other pods do.
"""

from __future__ import annotations

import os
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from trainyard_agent.addresses import connect
from trainyard_agent.processes import processes_by_pid, reap
from trainyard_agent.rank_records import FOLDER_VARIABLE
from trainyard_agent.signalling import TERMINATED_CODE, forward_signal
from trainyard_agent.spawn import SIGNALS, STANDARD_ERROR, TERMINATION_SIGNALS, UNSTARTABLE_CODES, spawn

LOOK_SECONDS = 2.0
"""How often to look whether the server's processes run."""
WAIT_LOG_SECONDS = 30.0
STOP_SECONDS = 5.0
"""How long the server gets to exit after the command. The agent kills what is left."""
FAILED_CODE, MISSING_CODE = 1, 127


class OverError(Exception):
    """The pod's part is over, with this exit code."""

    def __init__(self, code: int) -> None:
        self.code = code


class FrameworkServer(ABC):
    """The processes of this pod: the server, and one command at a time."""

    name: str
    """The server, as people know it."""

    def __init__(self, environment: Mapping[str, str], log: Callable[[str], None]) -> None:
        self._environment, self._log = environment, log
        self._server: int | None = None
        self._main: int | None = None
        """The process that signals are meant for, beside the server: the user's command, or what runs before it."""
        self._codes: dict[int, int] = {}
        self._terminated = False
        self._looked = time.monotonic()
        self._reader, self._writer = os.pipe()

    def run(self) -> int:
        """Run until this pod's part is over. Returns the exit code."""
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)
        try:
            return self._run()
        except OverError as over:
            return over.code
        finally:
            self._stop_server()

    @abstractmethod
    def _run(self) -> int:
        """Start the server, and run what belongs beside it. Returns the exit code."""

    def _check(self, server: int) -> None:  # noqa: B027 - most servers are one process
        """Look whether the server, which runs, is still of use. Raises OverError where it is not."""

    def _is_given_up(self) -> bool:
        """Whether the server, which was asked to exit, would try in vain to reach another pod first."""
        return False

    def _variables(self, *, is_users: bool) -> dict[str, str]:
        """Return the environment of a process. `is_users`: of the user's command."""
        # How the framework's own programs exit says nothing of the training, and they are no ranks.
        hidden = set[str]() if is_users else {FOLDER_VARIABLE}
        return {name: value for name, value in self._environment.items() if name not in hidden}

    def _start(
        self, words: Sequence[str], *, is_users: bool = False, output: int | None = None, error: int = STANDARD_ERROR
    ) -> int:
        """Start a process, and return its PID. Raises OverError. `is_users`: it is the user's command.

        `output`, `error`: the descriptors that become its outputs.
        """
        try:
            variables = self._variables(is_users=is_users)
            return spawn(words, variables, error, shares_input=is_users, output=output)
        except OSError as reason:
            self._log(f"cannot start {words[0]}: {reason.strerror or reason}")
            raise OverError(UNSTARTABLE_CODES.get(reason.errno, FAILED_CODE)) from reason

    def _finish(self, words: Sequence[str], *, is_users: bool = False, output: int | None = None) -> int:
        """Run a command to its end, as long as the server runs. Returns its exit code."""
        self._main = self._start(words, is_users=is_users, output=output)
        try:
            return self._wait_for(self._main)
        finally:
            self._main = None

    def _prepare(self, words: Sequence[str], *, output: int | None = None) -> int:
        """Run a command of our own to its end. Returns its exit code. A signal to exit ends this part for good."""
        code = self._finish(words, output=output)
        if self._terminated:
            raise OverError(TERMINATED_CODE)
        return code

    def _serve(self) -> int:
        """Wait for the server, which is all that runs here. Returns the exit code."""
        if self._server is None:
            raise RuntimeError("no server was started")
        code = self._wait_for(self._server)
        return TERMINATED_CODE if self._terminated else code or FAILED_CODE

    def _wait_for(self, pid: int) -> int:
        while pid not in self._codes:
            self._look(pid)
        return self._codes[pid]

    def _await_address(self, host: str, port: int, what: str) -> None:
        """Wait until something listens there. `what`: what it is, for the log."""
        began = logged = time.monotonic()
        while (error := connect(host, port)) is not None:
            self._pause()
            if time.monotonic() - logged >= WAIT_LOG_SECONDS:
                logged = time.monotonic()
                self._log(f"waiting for {what} address={host}:{port} seconds={logged - began:.0f} error={error!r}")

    def _pause(self, seconds: float = 0.5) -> None:
        """Wait. A signal to exit ends the wait for good."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._terminated:
            self._look(None, min(left, LOOK_SECONDS))
        if self._terminated:
            raise OverError(TERMINATED_CODE)

    def _look(self, awaited: int | None, seconds: float = LOOK_SECONDS) -> None:
        """Wait until something happens, and check the server. `awaited`: the process whose end is waited for, which counts more."""
        with suppress(BlockingIOError):
            if select.select([self._reader], [], [], seconds)[0]:
                for number in os.read(self._reader, 4096):
                    if number != signal.SIGCHLD:
                        self._forward(number)
        self._codes.update(reap())
        if awaited in self._codes or self._server is None:
            return
        if self._terminated and awaited == self._server and self._is_given_up():
            raise OverError(TERMINATED_CODE)
        if self._server in self._codes:
            code = TERMINATED_CODE if self._terminated else self._codes[self._server]
            self._log(f"{self.name} has exited in this pod exit_code={code}")
            raise OverError(code or FAILED_CODE)
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._check(self._server)

    def _forward(self, number: int) -> None:
        """Pass a signal on to the command. Without one, the server gets those by which it exits, in its own time."""
        self._terminated = self._terminated or number in TERMINATION_SIGNALS
        target = self._main if self._main is not None else self._server
        if target is not None and (target != self._server or number in TERMINATION_SIGNALS):
            forward_signal(number, target, processes_by_pid())

    def _stop_server(self) -> None:
        if self._server is None or self._server in self._codes or self._terminated:
            return
        forward_signal(signal.SIGTERM, self._server, processes_by_pid())
        end = time.monotonic() + STOP_SECONDS
        while self._server not in self._codes and (left := end - time.monotonic()) > 0:
            select.select([self._reader], [], [], min(left, 0.2))
            self._codes.update(reap())


def log(text: str) -> None:
    """Write a line of the agent to the standard error."""
    with suppress(OSError):
        os.write(STANDARD_ERROR, f"trainyard-agent: {text}\n".encode(errors="replace"))
