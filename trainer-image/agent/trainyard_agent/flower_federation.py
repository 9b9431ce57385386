"""Run Flower in this pod, below the agent: a SuperNode, or on the server the SuperLink and the user's command, which starts a run.

The exit code of the server is 0 if the command exits with 0 and each run that it has started is completed. A client never ends by itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainyard_agent.addresses import own_address
from trainyard_agent.flower import HOME_VARIABLE, LIST, FlowerNode, Run, flower_node, runs, verdict
from trainyard_agent.framework_server import FAILED_CODE, MISSING_CODE, FrameworkServer, OverError, log
from trainyard_agent.processes import processes_by_pid
from trainyard_agent.signalling import TERMINATED_CODE, forward_signal
from trainyard_agent.spawn import STANDARD_OUTPUT, TERMINATION_SIGNALS

POLL_SECONDS = 5.0
"""How often to ask for the state of a run that goes on after its command. Each question takes about two seconds of a processor."""
TRIES = 5
"""Questions in a row that may fail."""


class FlowerFederation(FrameworkServer):
    """The processes of this pod's part of the federation."""

    def __init__(
        self, node: FlowerNode, environment: Mapping[str, str], log: Callable[[str], None], home: Path
    ) -> None:
        """`home`: an empty folder, for Flower."""
        super().__init__(environment, log)
        self._node, self._home = node, home
        self.name = "Flower's SuperLink" if node.is_server else "Flower's SuperNode"

    def _run(self) -> int:  # type: ignore[explicit-override]  # no typing_extensions here
        node, address = self._node, own_address()
        if shutil.which(node.start[0], path=self._environment.get("PATH", os.defpath)) is None:
            self._log(f"cannot start Flower: there is no program {node.start[0]} in PATH; install flwr in the image")
            return MISSING_CODE
        if not node.is_server:
            if node.server_address is not None:
                self._await_address(*node.server_address, "the server")
            self._server = self._start(node.words(address))
            return self._serve()
        try:
            return self._run_server(address)
        except OverError:
            if not self._terminated:
                raise
            return self._await_stop()

    def _run_server(self, address: str) -> int:
        """Run the SuperLink and the command. `address`: the IP address of this pod. Returns the exit code; raises OverError."""
        node = self._node
        (self._home / "config.toml").write_text(node.connection(address))
        # What the worker fails with is what is on the standard error last: not the log of all requests.
        self._server = self._start(node.words(address), error=STANDARD_OUTPUT)
        self._await_address("::1" if ":" in address else "127.0.0.1", node.port, self.name)
        # A database may have those of earlier attempts.
        earlier = {run.id for run in self._ask()}
        self._log("starting the command")
        code = self._finish(node.command, is_users=True)
        if self._terminated:
            raise OverError(TERMINATED_CODE)
        return code or self._judge(earlier)

    def _judge(self, earlier: set[str]) -> int:
        """Wait until the runs of the command have finished. Returns the exit code that they stand for."""
        while not (found := verdict(self._ask(), earlier)).is_final:
            self._pause(POLL_SECONDS)
        if found.failure is None:
            return 0
        self._log(found.failure)
        return FAILED_CODE

    def _ask(self) -> Sequence[Run]:
        """Return the runs of the SuperLink. Raises OverError where it does not answer."""
        for _ in range(TRIES):
            with tempfile.TemporaryFile(dir=self._home) as output:
                self._prepare(LIST, output=output.fileno())
                output.seek(0)
                found = runs(output.read())
            if found is not None:
                return found
            self._pause(POLL_SECONDS)
        self._log(f"cannot see the runs of Flower command={' '.join(LIST)}")
        raise OverError(FAILED_CODE)

    def _await_stop(self) -> int:
        """Wait until the SuperLink has exited, after the program of the run. Returns the exit code."""
        if self._server is not None:
            self._wait_for(self._server)
        return TERMINATED_CODE

    def _variables(self, *, is_users: bool) -> dict[str, str]:  # type: ignore[explicit-override]  # no typing_extensions here
        made = super()._variables(is_users=is_users)
        return made if is_users and HOME_VARIABLE in made else {**made, HOME_VARIABLE: str(self._home)}

    def _forward(self, number: int) -> None:  # type: ignore[explicit-override]  # no typing_extensions here
        """Pass a signal on. The program of the run is below the SuperLink, which so gets those by which it exits, too."""
        if self._main is None or number not in TERMINATION_SIGNALS:
            super()._forward(number)
            return
        self._terminated = True
        # To all processes of the command: a program may not pass it on to its `flwr run`, and the SuperLink would wait for who reads its log.
        with suppress(ProcessLookupError):
            os.killpg(self._main, number)
        if self._server is not None:
            forward_signal(number, self._server, processes_by_pid())


def main(command: Sequence[str]) -> int:
    """Run this pod's part of the federation. The server runs the user's command."""
    node = flower_node(command, os.environ)
    if node is None:
        raise ValueError("the operator has set no command of Flower")
    try:
        # A user sets the folder where no other can be written.
        home = Path(tempfile.mkdtemp(prefix="trainyard-flower-", dir=os.environ.get(HOME_VARIABLE)))
    except OSError as error:
        log(
            f"cannot make a folder for Flower: {error}; set FLWR_HOME to a folder that can be written, or mount one at /tmp"
        )
        return FAILED_CODE
    try:
        code = FlowerFederation(node, os.environ, log, home).run()
    finally:
        signal.set_wakeup_fd(-1)
        shutil.rmtree(home, ignore_errors=True)
    sys.stdout.flush()
    return code
