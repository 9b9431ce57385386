"""Run the agent as a process, with a script as its command, in a folder of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from tests.support.jobs import NOW
from tests.support.polling import until
from tests.unit.agent.worker_environment import WORKER_VARIABLES
from trainyard.domain.state.observed_exits import container_exit
from trainyard.domain.state.termination import Termination, read
from trainyard_agent.processes import descendants


class AgentProcess:
    """One run, with its own folder: what the ranks write, and the termination message."""

    def __init__(self, program: Path, folder: Path, *command: str, **environment: str) -> None:
        self.folder = folder
        self.log = folder / "termination-log"
        self.log.touch()
        variables = {
            **os.environ,
            **WORKER_VARIABLES,
            "TRAINYARD_TERMINATION_LOG": str(self.log),
            "FOLDER": str(folder),
        }
        variables |= {"TRAINYARD_FLIGHT_RECORDER": str(folder / "recorder")}
        self.process = subprocess.Popen(
            [sys.executable, str(program), *command],
            env={**variables, **environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self) -> tuple[int, str]:
        """Return its exit code, and the standard error of the agent and its ranks."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def kill(self) -> None:
        """Kill it with all its descendants, which would keep the pipes open."""
        left, agent = set[int](), self.process.pid
        # Stopped first, they start no further processes meanwhile.
        while self.process.poll() is None and (new := {agent, *descendants(agent)} - left):
            _send(signal.SIGSTOP, new)
            left |= new
        _send(signal.SIGKILL, left)
        self.process.communicate(timeout=60)

    @property
    def message(self) -> str:
        """The termination message as the operator shows it: the sentence of its data, then the text."""
        return displayed(self.log.read_text(encoding="utf-8"))

    @property
    def data(self) -> Termination | None:
        """The data of the termination message, as the operator reads it."""
        return read(self.log.read_text(encoding="utf-8")).data

    def file(self, name: str) -> str:
        """Wait until a rank has written this file, and return its text."""
        until(lambda: (self.folder / name).exists() and (self.folder / name).read_text(), 60, f"{name} to be written")
        return (self.folder / name).read_text()


def running_agent(program: Path, folder: Path, script: str, **environment: str) -> AbstractContextManager[AgentProcess]:
    """Run a Python script in each rank. In it, R is the rank, and `record(name, text)` writes a file at once."""
    return _running(program, folder, script, [sys.executable, "script.py"], environment)


def running_shell(program: Path, folder: Path, script: str, **environment: str) -> AbstractContextManager[AgentProcess]:
    """Run the script as the child of a shell in each rank."""
    # A shell whose command is its last would become that command.
    return _running(program, folder, script, ["sh", "-c", f"{sys.executable} script.py; exit $?"], environment)


@contextmanager
def _running(
    program: Path, folder: Path, script: str, command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[AgentProcess]:
    (folder / "script.py").write_text(
        "import os, signal, subprocess, sys, time\n"
        'R = int(os.environ["RANK"])\n'
        "def record(name, text):\n"
        '    with open(name + ".new", "w") as file: file.write(str(text))\n'
        '    os.rename(name + ".new", name)\n' + script
    )
    made = AgentProcess(program, folder, "--", *command, **environment)
    try:
        yield made
    finally:
        made.kill()


def _send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def displayed(message: str) -> str:
    """A termination message as the operator shows it."""
    return container_exit(NOW, 1, message).message


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
