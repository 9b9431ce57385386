"""Run Ray in this pod, below the agent: `ray start`, and on the head the user's command once all workers have joined.

The agent starts this program as a command that starts ranks itself. Its exit code is that of the driver. It exits with 1 as soon as Ray in this
pod is gone. The driver would notice that after a minute, and a worker without its raylet never.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from trainyard_agent.processes import descendants, processes_by_pid, reap
from trainyard_agent.rank_records import FOLDER_VARIABLE
from trainyard_agent.ray import RayNode, ray_node
from trainyard_agent.signalling import TERMINATED_CODE, forward_signal
from trainyard_agent.spawn import SIGNALS, STANDARD_ERROR, TERMINATION_SIGNALS, UNSTARTABLE_CODES, spawn

LOOK_SECONDS = 2.0
"""How often to look whether Ray's processes run."""
WAIT_LOG_SECONDS = 30.0
CONNECT_SECONDS = 5.0
STOP_SECONDS = 5.0
"""How long Ray gets to exit after the driver. The agent kills what is left."""
FAILED_CODE, MISSING_CODE = 1, 127


class _OverError(Exception):
    """The pod's part in the cluster is over, with this exit code."""

    def __init__(self, code: int) -> None:
        self.code = code


class RayCluster:
    """The processes of this pod's part of the cluster."""

    def __init__(self, node: RayNode, environment: Mapping[str, str], log: Callable[[str], None]) -> None:
        self._node, self._environment, self._log = node, environment, log
        self._ray: int | None = None
        self._main: int | None = None
        """The process that signals are meant for, beside Ray: the driver, or what runs before it."""
        self._codes: dict[int, int] = {}
        self._served = False
        """Whether all of Ray's processes have run."""
        self._terminated = False
        self._looked = time.monotonic()
        self._reader, self._writer = os.pipe()

    def run(self) -> int:
        """Run until the driver has exited, or Ray is gone. Returns the exit code."""
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)
        try:
            return self._run()
        except _OverError as over:
            return over.code
        finally:
            self._stop_ray()

    def _run(self) -> int:
        node = self._node
        if self._prepare(node.find()) != 0:
            self._log(f"cannot start Ray: {' '.join(node.interpreter)} has no module ray; install ray in the image")
            return MISSING_CODE
        if node.head_address is not None:
            self._await_head(*node.head_address)
        self._ray = self._start(node.start(own_address()))
        if not node.is_head:
            code = self._wait_for(self._ray)
            return TERMINATED_CODE if self._terminated else code or FAILED_CODE
        address = self._environment.get("RAY_ADDRESS", "auto")
        self._log(f"waiting until the workers have joined workers={node.workers}")
        self._await_port(address)
        if (code := self._prepare(node.join(address))) != 0:
            self._log(f"cannot see the workers of the cluster exit_code={code}")
            return code
        self._served = True
        self._log("starting the driver")
        return self._finish(node.driver)

    def _start(self, words: Sequence[str]) -> int:
        try:
            is_driver = words is self._node.driver
            # How Ray's own programs exit says nothing of the driver, and they are no ranks.
            hidden = set[str]() if is_driver else {FOLDER_VARIABLE}
            made = {name: value for name, value in self._environment.items() if name not in hidden}
            return spawn(words, made, STANDARD_ERROR, shares_input=is_driver)
        except OSError as error:
            self._log(f"cannot start {words[0]}: {error.strerror or error}")
            raise _OverError(UNSTARTABLE_CODES.get(error.errno, FAILED_CODE)) from error

    def _finish(self, words: Sequence[str]) -> int:
        """Run a command to its end, as long as Ray runs. Returns its exit code."""
        self._main = self._start(words)
        try:
            return self._wait_for(self._main)
        finally:
            self._main = None

    def _prepare(self, words: Sequence[str]) -> int:
        """Run a command of our own to its end. Returns its exit code. A signal to exit ends this part for good."""
        code = self._finish(words)
        if self._terminated:
            raise _OverError(TERMINATED_CODE)
        return code

    def _wait_for(self, pid: int) -> int:
        while pid not in self._codes:
            self._look(pid)
        return self._codes[pid]

    def _await_head(self, host: str, port: int) -> None:
        began = logged = time.monotonic()
        while (error := _connect(host, port)) is not None:
            self._pause()
            if time.monotonic() - logged >= WAIT_LOG_SECONDS:
                logged = time.monotonic()
                self._log(f"waiting for the head address={host}:{port} seconds={logged - began:.0f} error={error!r}")

    def _await_port(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        while port.isdecimal() and _connect(host.strip("[]"), int(port)) is not None:
            self._pause()

    def _pause(self) -> None:
        """Wait for half a second. A signal to exit ends the wait for good."""
        end = time.monotonic() + 0.5
        while (left := end - time.monotonic()) > 0:
            self._look(None, left)
        if self._terminated:
            raise _OverError(TERMINATED_CODE)

    def _look(self, awaited: int | None, seconds: float = LOOK_SECONDS) -> None:
        """Wait until something happens, and check Ray. `awaited`: the process whose end is waited for, which counts more."""
        with suppress(BlockingIOError):
            if select.select([self._reader], [], [], seconds)[0]:
                for number in os.read(self._reader, 4096):
                    if number != signal.SIGCHLD:
                        self._forward(number)
        self._codes.update(reap())
        if awaited in self._codes or self._ray is None:
            return
        if self._terminated and awaited == self._ray and self._has_lost_head():
            # Ray would try for 30 seconds to tell the head that it leaves.
            raise _OverError(TERMINATED_CODE)
        if self._ray in self._codes:
            code = self._codes[self._ray]
            self._log(f"Ray has exited in this pod exit_code={code}")
            raise _OverError(code or FAILED_CODE)
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._check_servers(self._ray)

    def _has_lost_head(self) -> bool:
        head = self._node.head_address
        return head is not None and _connect(*head) is not None

    def _check_servers(self, ray: int) -> None:
        table = processes_by_pid()
        names = {table[pid].name for pid in descendants(ray, table=table)}
        missing = [name for name in self._node.servers if name not in names]
        if missing and self._served and not self._terminated:
            self._log(f"a process of Ray has exited in this pod name={missing[0]} logs=/tmp/ray/session_latest/logs")
            raise _OverError(FAILED_CODE)
        self._served = self._served or not missing

    def _forward(self, number: int) -> None:
        """Pass a signal on to the driver. Without one, Ray gets those by which it exits, after its tasks."""
        self._terminated = self._terminated or number in TERMINATION_SIGNALS
        target = self._main if self._main is not None else self._ray
        if target is not None and (target != self._ray or number in TERMINATION_SIGNALS):
            forward_signal(number, target, processes_by_pid())

    def _stop_ray(self) -> None:
        if self._ray is None or self._ray in self._codes or self._terminated:
            return
        forward_signal(signal.SIGTERM, self._ray, processes_by_pid())
        end = time.monotonic() + STOP_SECONDS
        while self._ray not in self._codes and (left := end - time.monotonic()) > 0:
            select.select([self._reader], [], [], min(left, 0.2))
            self._codes.update(reap())


def own_address() -> str:
    """Return the IP address of this pod, which its host name stands for; empty where that is none that other pods reach."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    return next((str(each[4][0]) for each in found if not str(each[4][0]).startswith(("127.", "::1", "fe80"))), "")


def _connect(host: str, port: int) -> str | None:
    """Return why nothing answers at this address; None where something does."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        return str(error.strerror or error)
    return None


def main(command: Sequence[str]) -> int:
    """Run this pod's part of the cluster, with the user's command as its driver."""
    node = ray_node(command, os.environ)
    if node is None:
        raise ValueError("the operator has set no options of ray start")
    code = RayCluster(node, os.environ, _log).run()
    sys.stdout.flush()
    return code


def _log(text: str) -> None:
    with suppress(OSError):
        os.write(STANDARD_ERROR, f"trainyard-agent: {text}\n".encode(errors="replace"))
