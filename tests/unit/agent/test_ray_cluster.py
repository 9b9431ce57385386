"""One pod of a Ray cluster as the agent runs it, with a stand-in for Ray: the real one runs in tests/cluster."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.worker_environment import AGENT_SOURCE
from trainyard_agent.processes import descendants, processes_by_pid, send

RAY = """
import os
def init(address, **options):
    with open(os.environ["FOLDER"] + "/joined", "w") as file: file.write(address)
def shutdown(): pass
def nodes():
    with open(os.environ["FOLDER"] + "/nodes") as file: return [{"Alive": word == "1"} for word in file.read().split()]
"""
START = """
import os, socket, subprocess, sys, time
folder = os.environ["FOLDER"]
def server(name):
    os.path.exists(f"{folder}/{name}") or os.symlink("/bin/sleep", f"{folder}/{name}")
    subprocess.Popen([f"{folder}/{name}", "1000"])
server("raylet")
if "--head" in sys.argv:
    server("gcs_server")
    port = next(word for word in sys.argv if word.startswith("--port="))
    listener = socket.create_server(("127.0.0.1", int(port.partition("=")[2])))
open(f"{folder}/ray", "w").write(" ".join(sys.argv[1:]))
time.sleep(float(os.environ.get("RAY_SECONDS", "1000")))
sys.exit(int(os.environ.get("RAY_CODE", "0")))
"""
DRIVER = """
import os, sys, time
open("driver", "w").write(os.environ["RAY_ADDRESS"])
time.sleep(float(os.environ.get("DRIVER_SECONDS", "0")))
sys.exit(int(os.environ.get("DRIVER_CODE", "0")))
"""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
        return number


@contextmanager
def running(folder: Path, start: str, port: int, **environment: str) -> Iterator[AgentProcess]:
    """Run the agent in a pod with these options of `ray start`, beside two nodes that live."""
    package = folder / "packages/ray/scripts"
    package.mkdir(parents=True)
    (folder / "packages/ray/__init__.py").write_text(RAY)
    (package / "scripts.py").write_text(START)
    (folder / "driver.py").write_text(DRIVER)
    (folder / "nodes").write_text("1 1 1")
    variables = {
        "PYTHONPATH": str(folder / "packages"),
        "TRAINYARD_RAY_START": start,
        "TRAINYARD_RAY_WORKERS": "2",
        "RAY_ADDRESS": f"127.0.0.1:{port}",
    }
    made = AgentProcess(
        AGENT_SOURCE, folder, "--once", "--", sys.executable, "driver.py", **{**variables, **environment}
    )
    try:
        yield made
    finally:
        made.kill()


def head(folder: Path, port: int, **environment: str) -> AbstractContextManager[AgentProcess]:
    return running(folder, f"--head --port={port}", port, **environment)


def worker(folder: Path, port: int, **environment: str) -> AbstractContextManager[AgentProcess]:
    return running(folder, f"--address=127.0.0.1:{port}", port, **environment)


def server(made: AgentProcess, name: str) -> int:
    """Wait until a process of Ray runs, and return its PID."""

    def found() -> list[int]:
        table = processes_by_pid()
        return [pid for pid in descendants(made.process.pid, table=table) if table[pid].name == name]

    until(lambda: bool(found()), 30, f"{name} to run")
    return found()[0]


def test_job_ends_with_the_driver(tmp_path: Path, port: int) -> None:
    with head(tmp_path, port) as made:
        code, errors = made.wait()
    assert code == 0, errors
    assert made.file("driver") == f"127.0.0.1:{port}"
    assert made.message == ""


@pytest.mark.parametrize("address", ["ray://elsewhere:10001", "a..b:6379", "local"])
def test_users_address_is_for_the_driver_alone(tmp_path: Path, port: int, address: str) -> None:
    with head(tmp_path, port, RAY_ADDRESS=address) as made:
        code, errors = made.wait()
    assert code == 0, errors
    assert made.file("driver") == address
    assert made.file("joined") == f"127.0.0.1:{port}"


def test_driver_waits_for_all_workers(tmp_path: Path, port: int) -> None:
    with head(tmp_path, port) as made:
        (tmp_path / "nodes").write_text("1 1 0")
        made.file("ray")
        server(made, "gcs_server")
        assert not (tmp_path / "driver").exists()
        (tmp_path / "nodes").write_text("1 0 1 1")
        code, errors = made.wait()
    assert code == 0, errors


def test_head_exits_as_the_driver(tmp_path: Path, port: int) -> None:
    with head(tmp_path, port, DRIVER_CODE="7") as made:
        assert made.wait()[0] == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_lost_server_ends_the_head(tmp_path: Path, port: int, number: int) -> None:
    with head(tmp_path, port, DRIVER_SECONDS="100") as made:
        made.file("driver")
        send(number, server(made, "gcs_server"))
        code, errors = made.wait()
    assert code == 1
    assert "a process of Ray has exited in this pod name=gcs_server" in errors


@pytest.mark.parametrize(("ray_code", "code"), [("0", 1), ("5", 5)])
def test_worker_fails_once_ray_has_exited(tmp_path: Path, port: int, ray_code: str, code: int) -> None:
    with socket.create_server(("127.0.0.1", port)), worker(tmp_path, port, RAY_SECONDS="1", RAY_CODE=ray_code) as made:
        assert made.wait()[0] == code
    assert not (tmp_path / "driver").exists()


def test_worker_waits_for_the_head(tmp_path: Path, port: int) -> None:
    with worker(tmp_path, port) as made:
        until(lambda: len(descendants(made.process.pid)) == 1, 30, "the wait for the head")
        assert not (tmp_path / "ray").exists()
        with socket.create_server(("127.0.0.1", port)):
            assert f"--address=127.0.0.1:{port} --block" in made.file("ray")


def test_stopped_worker_does_not_await_lost_head(tmp_path: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener, worker(tmp_path, port) as made:
        raylet = server(made, "raylet")
        # It drains for long.
        os.kill(processes_by_pid()[raylet].parent, signal.SIGSTOP)
        listener.close()
        made.process.send_signal(signal.SIGTERM)
        assert made.wait()[0] == 128 + signal.SIGTERM


def test_image_without_ray_is_named(tmp_path: Path, port: int) -> None:
    with head(tmp_path, port, PYTHONPATH="/nowhere") as made:
        code, errors = made.wait()
    assert code == 127
    assert "has no module ray; install ray in the image" in errors
