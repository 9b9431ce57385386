from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from dev.localcluster import processes
from dev.localcluster.paths import Paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Paths]:
    paths = Paths(tmp_path)
    paths.state.mkdir()
    yield paths
    processes.kill_all(paths)


def fake_process(proc: Path, pid: int, *, name: str = "etcd", state: str = "S", started: int = 4711) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    after_the_name = [state, *["0"] * 18, str(started), "0"]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(after_the_name)}\n")
    boot = proc / "sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True, exist_ok=True)
    boot.write_text("boot-1\n")


@pytest.mark.parametrize("name", ["etcd", "a) b (c", "x 1 2 3", ")"])
def test_identity_holds_the_start_time_whatever_the_name(tmp_path: Path, name: str) -> None:
    fake_process(tmp_path, 7, name=name)
    assert processes.identify(7, tmp_path) == processes.Identity(7, 4711, "boot-1")


@pytest.mark.parametrize("state", ["Z", "X"])
def test_zombie_process_has_no_identity(tmp_path: Path, state: str) -> None:
    fake_process(tmp_path, 7, state=state)
    assert processes.identify(7, tmp_path) is None


def test_unused_pid_has_no_identity(tmp_path: Path) -> None:
    assert processes.identify(7, tmp_path) is None


def test_a_started_process_is_found_and_killed(paths: Paths) -> None:
    pid = processes.start(paths, "sleeper", SLEEP)
    assert processes.alive(paths, "sleeper") == pid
    # The kernel shows its environment a moment after it has begun.
    deadline = time.monotonic() + 20
    while processes.marked(paths) != [pid]:
        assert time.monotonic() < deadline
    processes.kill_all(paths)
    assert processes.alive(paths, "sleeper") is None


def test_children_carry_the_mark(paths: Paths) -> None:
    processes.start(paths, "parent", ("sh", "-c", f"{sys.executable} -c 'import time; time.sleep(60)' & wait"))
    deadline = time.monotonic() + 20
    while len(processes.marked(paths)) < 2:
        assert time.monotonic() < deadline
    processes.kill_all(paths)
    assert processes.marked(paths) == []


def test_a_recycled_number_is_not_alive(paths: Paths, tmp_path: Path) -> None:
    processes.start(paths, "sleeper", SLEEP)
    identity = processes.identify(processes.alive(paths, "sleeper") or 0)
    assert identity is not None
    proc = tmp_path / "proc"
    fake_process(proc, identity.pid, started=identity.started + 1)
    assert processes.alive(paths, "sleeper", proc) is None


@pytest.mark.parametrize("content", ["", "{", "{}", "7", '{"pid": 1, "who": 2}'])
def test_broken_record_has_no_process(paths: Paths, content: str) -> None:
    paths.pids.mkdir()
    (paths.pids / "etcd").write_text(content)
    assert processes.alive(paths, "etcd") is None


def test_what_has_no_mark_is_not_killed(paths: Paths, tmp_path: Path) -> None:
    other = Paths(tmp_path / "other")
    other.state.mkdir(parents=True)
    pid = processes.start(other, "sleeper", SLEEP)
    processes.kill([pid, os.getpid()], paths)
    assert processes.alive(other, "sleeper") == pid
    processes.kill_all(other)


def test_a_longer_path_is_another_mark(paths: Paths, tmp_path: Path) -> None:
    longer = Paths(tmp_path / "cluster")  # its state folder begins with the other's
    longer.state.mkdir(parents=True)
    pid = processes.start(longer, "sleeper", SLEEP)
    assert processes.marked(paths) == []
    processes.kill([pid], longer)
