"""Workers compare their nodes before they train: real agents, real process groups, and a worker whose processor is held back."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import trainyard_agent
from tests.library.support.programs import free_port
from trainyard_agent import preflight_rank
from trainyard_agent.preflight import PORT_DISTANCE

PROGRAM = Path(trainyard_agent.__file__).parents[1]
WORKERS = 3
TRAIN = "import os; print('trains', os.environ['RANK'], flush=True)"
STOPPED_SHARE, PERIOD_SECONDS = 0.85, 0.1
"""As the kernel holds a container back that has used up its processor time."""


@contextmanager
def group(folder: Path, **variables: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Run the agents of a group, and kill what is left of them."""
    port = free_port()
    agents = []
    for index in range(WORKERS):
        log = folder / f"termination-{index}"
        log.touch()
        environment = {
            "TRAINYARD_REPLICAS": str(WORKERS),
            "TRAINYARD_REPLICA_INDEX": str(index),
            "TRAINYARD_PROCESSES_PER_REPLICA": "1",
            "TRAINYARD_ATTEMPT": "1",
            "TRAINYARD_JOB_UID": "uid",
            "TRAINYARD_PREFLIGHT": "quick",
            "TRAINYARD_TERMINATION_LOG": str(log),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port - PORT_DISTANCE if port > PORT_DISTANCE else port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        agents.append(
            subprocess.Popen(
                [sys.executable, str(PROGRAM), "--", sys.executable, "-c", TRAIN],
                env={**os.environ, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        yield agents
    finally:
        for agent in agents:
            # It kills its ranks first.
            agent.terminate()
        for agent in agents:
            agent.communicate(timeout=60)


def preflight_rank_of(agent: "subprocess.Popen[str]") -> int | None:
    """Return the PID of the rank that this agent compares nodes with, once it runs."""
    with suppress(OSError):
        for child in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split():
            if b"--preflight" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


@contextmanager
def held_back(agent: "subprocess.Popen[str]") -> Iterator[None]:
    """Stop the rank of this agent for most of the time."""
    over = threading.Event()

    def hold() -> None:
        while not over.wait(PERIOD_SECONDS * (1 - STOPPED_SHARE)):
            if (pid := preflight_rank_of(agent)) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    over.wait(PERIOD_SECONDS * STOPPED_SHARE)
                    os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_healthy_group_trains_after_it(tmp_path: Path, mode: str) -> None:
    with group(tmp_path, TRAINYARD_PREFLIGHT=mode) as agents:
        outputs = [agent.communicate(timeout=120)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0, 0], outputs
    for index, output in enumerate(outputs):
        comparing, trains = output.index("comparing the nodes of the group"), output.index(f"trains {index}")
        assert comparing < trains
    assert "no worker is far slower than the others workers=3 seconds=" in outputs[0]
    assert "sum over all ranks bytes=4194304 ms=" in outputs[0]


@pytest.mark.parametrize("slow", [0, 1])
def test_slow_worker_leaves_and_no_rank_trains(tmp_path: Path, slow: int) -> None:
    with group(tmp_path) as agents, held_back(agents[slow]):
        outputs = [agent.communicate(timeout=120)[0] for agent in agents]
    expected = [preflight_rank.UNFIT_NODE_CODE if index == slow else 92 for index in range(WORKERS)]
    assert [agent.returncode for agent in agents] == expected, outputs
    assert not any("trains" in output for output in outputs)
    message = (tmp_path / f"termination-{slow}").read_text()
    assert f"a matrix product of worker {slow} takes" in message
    assert "the worker moves to another node" in message


def test_what_cannot_be_measured_stops_no_training(tmp_path: Path) -> None:
    with group(tmp_path, GLOO_SOCKET_IFNAME="nothing0") as agents:
        outputs = [agent.communicate(timeout=120)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0, 0], outputs
    for index, output in enumerate(outputs):
        assert "nodes were not compared: " in output
        assert f"trains {index}" in output
