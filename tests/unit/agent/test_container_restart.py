"""A worker whose container is to start anew: it ends so that its node does that, and the next one knows what it is for."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.operator_process import Operator, credentials
from tests.unit.agent.running import agent
from trainyard_agent.container_restart import RESTART_CODE, ContainerRestart
from trainyard_agent.protocol import parse_order

WAITS = "say(f\"ran{R}-{os.environ['TRAINYARD_ATTEMPT']}\", os.getpid())\ntime.sleep(600)"
ENDS = "say(f\"ran{R}-{os.environ['TRAINYARD_ATTEMPT']}\", os.getpid())"
FAILS = 'import os, sys; sys.exit(int(os.environ["CODE"]))'
MEMORY = Path("/dev/shm")  # noqa: S108 - where the mark is left


@pytest.fixture
def variables(folder: Path, operator: Operator) -> Iterator[dict[str, str]]:
    """Of a job of its own: its marks lie in this machine's memory."""
    uid = f"uid-{secrets.token_hex(4)}"
    yield {**credentials(folder, operator.port), "TRAINYARD_WARM_START": "0", "TRAINYARD_JOB_UID": uid}
    for mark in MEMORY.glob(f"trainyard-restart-{uid}-*"):
        mark.unlink()


def test_agent_exits_and_next_container_awaits_attempt(
    program: Path, folder: Path, operator: Operator, variables: dict[str, str]
) -> None:
    with agent(program, folder, WAITS, **variables) as first:
        first.file("ran2-1")
        operator.orders = {"attempt": 2, "run": False, "restart": True}
        code, _ = first.ends()
        assert (code, first.message) == (RESTART_CODE, "the container restarts for attempt 2")
    operator.hears("restarting", 2)
    assert {poll["state"] for poll in operator.polls} == {"running", "restarting"}
    with agent(program, folder, ENDS, **variables) as second:
        operator.hears("waiting", 2)
        assert not (folder / "ran2-2").exists()
        operator.order(2, run=True)
        assert second.ends()[0] == 0
    assert second.file("ran2-2")
    # Of one that comes after it, in a pod of its own, nothing is known.
    assert ContainerRestart(os.environ | variables, print).attempt is None


def test_failed_worker_restarts_its_container(
    program: Path, folder: Path, operator: Operator, variables: dict[str, str]
) -> None:
    with agent(program, folder, FAILS, **variables, CODE="3") as run:
        operator.hears("failed")
        operator.orders = {"attempt": 2, "run": False, "restart": True}
        assert run.ends()[0] == RESTART_CODE


def test_program_with_restart_code_restarts_no_container(
    program: Path, folder: Path, operator: Operator, variables: dict[str, str]
) -> None:
    operator.says = (404, {})
    with agent(program, folder, FAILS, **variables, CODE=str(RESTART_CODE)) as run:
        assert run.ends()[0] == 1
        assert "exited with code 88" in run.message


def test_processes_restart_if_marker_cannot_be_written(tmp_path: Path) -> None:
    said: list[str] = []
    environment = {"TRAINYARD_COORDINATOR": "https://localhost:1", "TRAINYARD_JOB_UID": "uid"}
    assert not ContainerRestart(environment, said.append, tmp_path).leave_mark(2)
    assert said == [f"restarting processes instead of the container: {tmp_path} does not outlive the container"]


@pytest.mark.parametrize("mark", ["", "x", "0", "-1", "9" * 30, "٣"])
def test_invalid_marker_is_ignored_and_removed(mark: str) -> None:
    environment = {"TRAINYARD_COORDINATOR": "https://localhost:1", "TRAINYARD_JOB_UID": secrets.token_hex(4)}
    path = MEMORY / f"trainyard-restart-{environment['TRAINYARD_JOB_UID']}--"
    path.write_text(mark)
    assert ContainerRestart(environment, print).attempt is None
    assert not path.exists()


def test_order_contains_restart_flag() -> None:
    assert parse_order({"attempt": 2, "restart": True}).restart
    assert not parse_order({"attempt": 2}).restart
    with pytest.raises(ValueError, match="restart is neither true nor false"):
        parse_order({"attempt": 2, "restart": "yes"})


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_special_file_is_no_marker(kind: str) -> None:
    environment = {"TRAINYARD_COORDINATOR": "https://localhost:1", "TRAINYARD_JOB_UID": secrets.token_hex(4)}
    path = MEMORY / f"trainyard-restart-{environment['TRAINYARD_JOB_UID']}--"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/etc/hostname")
    try:
        made = ContainerRestart(environment, print)
        assert made.attempt is None
        assert kind != "folder" or not made.leave_mark(2)
    finally:
        path.rmdir() if kind == "folder" else path.unlink(missing_ok=True)
