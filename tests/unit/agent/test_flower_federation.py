"""One pod of a Flower federation as the agent runs it, with stand-ins for Flower's programs: the real ones run in tests/cluster."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.worker_environment import AGENT_SOURCE
from trainyard_agent.processes import descendants, processes_by_pid, send

SUPERLINK = """
import os, signal, socket, sys, time
folder = os.environ["FOLDER"]
port = next(word for word in sys.argv if word.startswith("--port="))
listener = socket.create_server(("127.0.0.1", int(port.partition("=")[2])))
def is_read():
    try:
        return open(f"/proc/{open(folder + '/reader').read()}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
def stop(*_):
    while is_read():
        time.sleep(0.05)
    time.sleep(float(os.environ.get("STOP_SECONDS", "0")))
    open(f"{folder}/stopped", "w").write("yes")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open(f"{folder}/superlink", "w").write(str(os.getpid()))
time.sleep(1000)
"""
SUPERNODE = """
import os, sys, time
open(os.environ["FOLDER"] + "/supernode", "w").write(" ".join(sys.argv[1:]))
time.sleep(float(os.environ.get("NODE_SECONDS", "1000")))
sys.exit(int(os.environ.get("NODE_CODE", "0")))
"""
FLWR = """
import os, sys, time
folder = os.environ["FOLDER"]
if sys.argv[1] == "list":
    try:
        runs = open(f"{folder}/after" if os.path.exists(f"{folder}/ran") else f"{folder}/before").read()
    except OSError:
        sys.exit(1)
    print(runs)
    if os.path.exists(f"{folder}/ran"):
        open(f"{folder}/judged", "w").write("yes")
else:
    open(f"{folder}/connection", "w").write(open(os.environ["FLWR_HOME"] + "/config.toml").read())
    open(f"{folder}/reader", "w").write(str(os.getpid()))
    open(f"{folder}/ran", "w").write("yes")
    time.sleep(float(os.environ.get("RUN_SECONDS", "0")))
    sys.exit(int(os.environ.get("RUN_CODE", "0")))
"""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
        return number


def listed(**statuses: str) -> str:
    return json.dumps(
        {
            "success": True,
            "runs": [
                {"run-id": run, "status": status, "status-details": "details"} for run, status in statuses.items()
            ],
        }
    )


@contextmanager
def running(
    folder: Path, start: str, command: Sequence[str] = ("flwr", "run", "."), **environment: str
) -> Iterator[AgentProcess]:
    """Run the agent in a pod with this command line of Flower; its run is completed."""
    programs = folder / "programs"
    programs.mkdir()
    for name, text in (("flower-superlink", SUPERLINK), ("flower-supernode", SUPERNODE), ("flwr", FLWR)):
        (programs / name).write_text(f"#!{sys.executable}\n{text}")
        (programs / name).chmod(0o755)
    (folder / "before").write_text(listed(first="finished:failed"))
    if not (folder / "after").exists():
        (folder / "after").write_text(listed(first="finished:failed", second="finished:completed"))
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "TRAINYARD_FLOWER_START": start}
    made = AgentProcess(AGENT_SOURCE, folder, "--once", "--", *command, **{**variables, **environment})
    try:
        yield made
    finally:
        made.kill()


def server(folder: Path, port: int, **environment: str) -> AbstractContextManager[AgentProcess]:
    return running(folder, f"flower-superlink --port={port}", **environment)


def client(folder: Path, port: int, **environment: str) -> AbstractContextManager[AgentProcess]:
    return running(folder, f"flower-supernode --superlink=127.0.0.1:{port}", **environment)


def test_completed_run_completes_the_server(tmp_path: Path, port: int) -> None:
    with server(tmp_path, port) as made:
        code, errors = made.wait()
    assert code == 0, errors
    assert f'address = "127.0.0.1:{port}"' in made.file("connection")
    assert (tmp_path / "stopped").exists()
    assert made.message == ""


@pytest.mark.parametrize("status", ["finished:failed", "finished:stopped"])
def test_failed_run_fails_although_command_says_0(tmp_path: Path, port: int, status: str) -> None:
    (tmp_path / "after").write_text(listed(first="finished:failed", second=status))
    with server(tmp_path, port) as made:
        code, errors = made.wait()
    assert code == 1
    assert f"run second of Flower is {status}: details" in errors


def test_command_without_run_fails(tmp_path: Path, port: int) -> None:
    (tmp_path / "after").write_text(listed(first="finished:failed"))
    with server(tmp_path, port) as made:
        code, errors = made.wait()
    assert code == 1
    assert "the command has started no run on the SuperLink of this job" in errors


def test_run_that_outlasts_its_command_is_awaited(tmp_path: Path, port: int) -> None:
    (tmp_path / "after").write_text(listed(second="running"))
    with server(tmp_path, port) as made:
        made.file("ran")
        done = tmp_path / "after.new"
        done.write_text(listed(second="finished:completed"))
        done.rename(tmp_path / "after")
        assert made.wait()[0] == 0


def test_failed_command_fails_with_its_code(tmp_path: Path, port: int) -> None:
    with server(tmp_path, port, RUN_CODE="7") as made:
        assert made.wait()[0] == 7


def test_lost_superlink_ends_the_server(tmp_path: Path, port: int) -> None:
    with server(tmp_path, port, RUN_SECONDS="100") as made:
        made.file("ran")
        send(signal.SIGKILL, int(made.file("superlink")))
        code, errors = made.wait()
    assert code == 128 + signal.SIGKILL
    assert "Flower's SuperLink has exited in this pod exit_code=137" in errors


def test_stop_reaches_the_program_of_the_run(tmp_path: Path, port: int) -> None:
    with server(tmp_path, port, RUN_SECONDS="100") as made:
        made.file("ran")
        made.process.send_signal(signal.SIGTERM)
        assert made.wait()[0] == 128 + signal.SIGTERM
    assert (tmp_path / "stopped").exists()


def test_stop_reaches_what_the_program_has_started(tmp_path: Path, port: int) -> None:
    """The SuperLink does not exit as long as somebody reads the log of the run."""
    program = [sys.executable, "-c", "import subprocess; subprocess.run(['flwr', 'run', '.'])"]
    with running(tmp_path, f"flower-superlink --port={port}", program, RUN_SECONDS="100") as made:
        made.file("ran")
        made.process.send_signal(signal.SIGTERM)
        assert made.wait()[0] == 128 + signal.SIGTERM
    assert (tmp_path / "stopped").exists()


def test_stop_is_awaited_without_the_command(tmp_path: Path, port: int) -> None:
    (tmp_path / "after").write_text(listed(second="running"))
    with server(tmp_path, port, STOP_SECONDS="1") as made:
        made.file("judged")
        made.process.send_signal(signal.SIGTERM)
        assert made.wait()[0] == 128 + signal.SIGTERM
    assert (tmp_path / "stopped").exists()


def test_client_waits_for_the_server(tmp_path: Path, port: int) -> None:
    with client(tmp_path, port, TRAINYARD_FLOWER_NODE_CONFIG="partition-id=1") as made:
        until(lambda: len(descendants(made.process.pid)) == 1, 30, "the wait for the server")
        assert not (tmp_path / "supernode").exists()
        with socket.create_server(("127.0.0.1", port)):
            assert made.file("supernode").endswith(f":{port} --insecure --node-config=partition-id=1")
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("node_code", "code"), [("0", 1), ("5", 5)])
def test_client_fails_once_its_node_has_exited(tmp_path: Path, port: int, node_code: str, code: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        client(tmp_path, port, NODE_SECONDS="0", NODE_CODE=node_code) as made,
    ):
        assert made.wait()[0] == code


def test_stopped_client_exits(tmp_path: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)), client(tmp_path, port) as made:
        made.file("supernode")
        made.process.send_signal(signal.SIGTERM)
        assert made.wait()[0] == 128 + signal.SIGTERM
        assert not [pid for pid in descendants(made.process.pid) if pid in processes_by_pid()]


def test_image_without_flower_is_named(tmp_path: Path, port: int) -> None:
    with server(tmp_path, port, PATH="/usr/bin:/bin") as made:
        code, errors = made.wait()
    assert code == 127
    assert "there is no program flower-superlink in PATH; install flwr in the image" in errors


def test_folder_of_flower_is_removed(tmp_path: Path, port: int) -> None:
    own = tmp_path / "home"
    own.mkdir()
    with server(tmp_path, port, FLWR_HOME=str(own)) as made:
        # The user's own has no connection to the SuperLink.
        code, errors = made.wait()
    assert code == 1, errors
    assert [*own.iterdir()] == []


def test_folder_that_cannot_be_made_is_named(tmp_path: Path, port: int) -> None:
    with server(tmp_path, port, FLWR_HOME="/nowhere") as made:
        code, errors = made.wait()
    assert code == 1
    assert "set FLWR_HOME to a folder that can be written" in errors
