"""Restart of a container: the agent exits for it, and the next agent continues the attempt."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import running_agent
from tests.unit.agent.fake_operator import FakeOperator, credentials
from trainyard_agent.container_restart import RESTART_CODE, ContainerRestart
from trainyard_agent.protocol import parse_order

SLEEPS = "record(f\"ran{R}-{os.environ['TRAINYARD_ATTEMPT']}\", os.getpid())\ntime.sleep(600)"
EXITS = "record(f\"ran{R}-{os.environ['TRAINYARD_ATTEMPT']}\", os.getpid())"
FAILS = 'import os, sys; sys.exit(int(os.environ["CODE"]))'
MARKER_FOLDER = Path("/dev/shm")  # noqa: S108 - where the marker is


@pytest.fixture
def variables(folder: Path, operator: FakeOperator) -> Iterator[dict[str, str]]:
    """Return the variables of a unique job: its markers are in this machine's memory."""
    uid = f"uid-{secrets.token_hex(4)}"
    yield {**credentials(folder, operator.port), "TRAINYARD_WARM_START": "0", "TRAINYARD_JOB_UID": uid}
    for marker in MARKER_FOLDER.glob(f"trainyard-restart-{uid}-*"):
        marker.unlink()


def test_agent_exits_and_next_container_awaits_attempt(
    program: Path, folder: Path, operator: FakeOperator, variables: dict[str, str]
) -> None:
    with running_agent(program, folder, SLEEPS, **variables) as first:
        first.file("ran2-1")
        operator.orders = {"attempt": 2, "run": False, "restart": True}
        code, _ = first.wait()
        assert (code, first.message) == (RESTART_CODE, "the container restarts for attempt 2")
    operator.wait_for("restarting", 2)
    assert {poll["state"] for poll in operator.polls} == {"running", "restarting"}
    with running_agent(program, folder, EXITS, **variables) as second:
        operator.wait_for("waiting", 2)
        assert not (folder / "ran2-2").exists()
        operator.order(2, run=True)
        assert second.wait()[0] == 0
    assert second.file("ran2-2")
    # A later pod does not see the marker.
    assert ContainerRestart(os.environ | variables, print).attempt is None


def test_failed_worker_restarts_its_container(
    program: Path, folder: Path, operator: FakeOperator, variables: dict[str, str]
) -> None:
    with running_agent(program, folder, FAILS, **variables, CODE="3") as run:
        operator.wait_for("failed")
        operator.orders = {"attempt": 2, "run": False, "restart": True}
        assert run.wait()[0] == RESTART_CODE


def test_program_with_restart_code_restarts_no_container(
    program: Path, folder: Path, operator: FakeOperator, variables: dict[str, str]
) -> None:
    operator.fixed_answer = (404, {})
    with running_agent(program, folder, FAILS, **variables, CODE=str(RESTART_CODE)) as run:
        assert run.wait()[0] == 1
        assert "exited with code 88" in run.message


def test_processes_restart_if_marker_cannot_be_written(tmp_path: Path) -> None:
    lines: list[str] = []
    environment = {"TRAINYARD_COORDINATOR": "https://localhost:1", "TRAINYARD_JOB_UID": "uid"}
    assert not ContainerRestart(environment, lines.append, tmp_path).leave_mark(2)
    assert lines == [f"restarting processes instead of the container: {tmp_path} does not outlive the container"]


@pytest.mark.parametrize("marker", ["", "x", "0", "-1", "9" * 30, "٣"])
def test_invalid_marker_is_ignored_and_removed(marker: str) -> None:
    environment = {"TRAINYARD_COORDINATOR": "https://localhost:1", "TRAINYARD_JOB_UID": secrets.token_hex(4)}
    path = MARKER_FOLDER / f"trainyard-restart-{environment['TRAINYARD_JOB_UID']}--"
    path.write_text(marker)
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
    path = MARKER_FOLDER / f"trainyard-restart-{environment['TRAINYARD_JOB_UID']}--"
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


def mark_of(environment: dict[str, str]) -> Path:
    return MARKER_FOLDER / f"trainyard-restart-{environment['TRAINYARD_JOB_UID']}--"


def test_mark_is_not_written_through_a_link(tmp_path: Path) -> None:
    environment = {"TRAINYARD_COORDINATOR": "https://localhost:1", "TRAINYARD_JOB_UID": secrets.token_hex(4)}
    victim = tmp_path / "victim"
    victim.write_text("kept")
    made = ContainerRestart(environment, print)
    mark_of(environment).symlink_to(victim)
    try:
        assert made.leave_mark(2)
        assert victim.read_text() == "kept"
        assert mark_of(environment).stat(follow_symlinks=False).st_mode & 0o777 == 0o600
        assert ContainerRestart(environment, print).attempt == 2
    finally:
        mark_of(environment).unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["hard link", "another user"])
def test_mark_of_others_is_ignored(kind: str) -> None:
    environment = {"TRAINYARD_COORDINATOR": "https://localhost:1", "TRAINYARD_JOB_UID": secrets.token_hex(4)}
    path = mark_of(environment)
    path.write_text("7")
    second = path.with_name(f"{path.name}-link")
    if kind == "hard link":
        second.hardlink_to(path)
    elif os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        path.unlink()
        pytest.skip("needs root to make a file of another user")
    try:
        assert ContainerRestart(environment, print).attempt is None
    finally:
        path.unlink(missing_ok=True)
        second.unlink(missing_ok=True)
