"""The agents of a server and two clients on this machine, with the real Flower, in the image `frameworks-flower` (`make test-long`)."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.polling import until
from trainyard_agent.processes import arguments, descendants

ROOT = Path(__file__).parents[2]
PACKAGES = Path("/opt/flower/site-packages")
SECONDS = 400
pytestmark = pytest.mark.skipif(not PACKAGES.exists(), reason="this image has no Flower")


class Federation:
    """The agents, with the variables that the operator sets."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.folder, self.agents = folder, dict[str, subprocess.Popen[bytes]]()

    def start_server(self, *arguments: str) -> None:
        self._start("server", f"flower-superlink --port={self.port}", *arguments)

    def start_client(self, number: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._start(
            f"client-{number}",
            f"flower-supernode --superlink=127.0.0.1:{self.port}",
            TRAINYARD_FLOWER_NODE_CONFIG=f"partition-id={number} num-partitions=2",
            # All of them are on one machine here.
            TRAINYARD_FLOWER_OPTIONS=f"--port={port}",
        )

    def _start(self, name: str, start: str, *arguments: str, **more: str) -> None:
        agent = [sys.executable, str(ROOT / "trainer-image/agent"), "--once", "--"]
        program = [sys.executable, str(ROOT / "examples/recipes/flower_train.py")]
        environment = {
            "PATH": f"{PACKAGES}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(PACKAGES),
            "PYTHONPYCACHEPREFIX": "/tmp/compiled",  # noqa: S108 - as that of the tests
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "TRAINYARD_ATTEMPT": "1",
            "TRAINYARD_REPLICA_INDEX": "0",
            "TRAINYARD_REPLICAS": "2",
            "TRAINYARD_PROCESSES_PER_REPLICA": "1",
            "TRAINYARD_JOB_UID": "uid",
            "TRAINYARD_FLOWER_START": start,
            "TRAINYARD_TERMINATION_LOG": str(self.folder / f"{name}.message"),
            **more,
        }
        (self.folder / f"{name}.message").touch()
        with (self.folder / f"{name}.log").open("wb") as log:
            self.agents[name] = subprocess.Popen(
                [*agent, *program, "--checkpoints", str(self.folder / "checkpoints"), *arguments],
                env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def log(self, name: str = "server") -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def until_losses(self, count: int) -> None:
        until(lambda: len(re.findall(r"loss \d", self.log())) >= count, SECONDS, f"{count} losses")

    def wait(self, name: str) -> int:
        """Return the exit code of an agent."""
        return self.agents[name].wait(SECONDS)

    def stop(self, name: str) -> int:
        """Ask an agent to exit, as the kubelet does. Return its exit code."""
        self.agents[name].send_signal(signal.SIGTERM)
        return self.agents[name].wait(30)

    def kill(self, name: str, program: str) -> None:
        """Kill a process below an agent."""
        for pid in descendants(self.agents[name].pid):
            if any(word.endswith(f"/{program}") for word in arguments(pid)):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    for agent in made.agents.values():
        for pid in [agent.pid, *descendants(agent.pid)] if agent.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait(30)


def test_run_goes_on_without_a_killed_client(federation: Federation) -> None:
    federation.start_server("--rounds", "6")
    federation.start_client(0)
    federation.start_client(1)
    federation.until_losses(2)
    federation.kill("client-1", "flower-supernode")
    assert federation.wait("client-1") == 128 + signal.SIGKILL
    federation.start_client(1)
    assert federation.wait("server") == 0, federation.log()
    assert "step 6 loss" in federation.log()
    received = re.findall(r"Received (\d) results and (\d) failures", federation.log())
    # Flower notices the lost client after a minute. The next rounds have it again.
    assert received[-1] == ("2", "0")
    assert [federation.stop(f"client-{number}") for number in (0, 1)] == [143, 143]


def test_failed_run_fails_although_command_says_0(federation: Federation) -> None:
    federation.start_server("--rounds", "0")
    assert federation.wait("server") == 1
    reason = "finished:failed: ServerApp failed with exception: rounds must be 1 or more, got 0"
    assert reason in (federation.folder / "server.message").read_text()


def test_next_server_goes_on_from_the_checkpoint(federation: Federation) -> None:
    federation.start_server("--rounds", "100")
    federation.start_client(0)
    federation.start_client(1)
    federation.until_losses(3)
    assert federation.stop("server") == 128 + signal.SIGTERM
    assert [federation.stop(f"client-{number}") for number in (0, 1)] == [143, 143]
    done = int(re.findall(r"step (\d+) loss", federation.log())[-1])
    federation.start_server("--rounds", str(done + 2))
    federation.start_client(0)
    federation.start_client(1)
    assert federation.wait("server") == 0, federation.log()
    assert f"step {done + 2} loss" in federation.log()
    (resumed,) = re.findall(r"resuming from step (\d+)", federation.log())
    assert done <= int(resumed) <= done + 1
