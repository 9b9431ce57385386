"""What killed ranks leave in shared memory."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agent.worker_environment import AGENT_SOURCE, WORKER_VARIABLES
from trainyard_agent.shared_memory import HOST_NAMESPACE, remove_leftovers


@pytest.fixture
def namespace(tmp_path: Path) -> Path:
    """The IPC namespace of a pod."""
    made = tmp_path / "ipc"
    made.symlink_to("ipc:[4026532001]")
    return made


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    """A folder with what ranks and others have left."""
    made = tmp_path / "shm"
    made.mkdir()
    for name in ("nccl-Ab12", "torch_71_99_0", "psm_8a7f", "trainyard-checkpoint-0", "mine", "other-nccl-1"):
        (made / name).write_bytes(b"x" * 4096)
    return made


KEPT = ["mine", "other-nccl-1", "trainyard-checkpoint-0"]


def test_files_of_killed_ranks_are_removed(shm: Path, namespace: Path) -> None:
    assert remove_leftovers(shm, namespace) == 3
    assert sorted(each.name for each in shm.iterdir()) == KEPT
    assert remove_leftovers(shm, namespace) == 0


def test_files_in_use_stay(shm: Path, namespace: Path) -> None:
    opened = os.open(shm / "nccl-Ab12", os.O_RDONLY)
    with (shm / "psm_8a7f").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 4096)
    try:
        assert remove_leftovers(shm, namespace) == 1
        assert sorted(each.name for each in shm.iterdir()) == sorted([*KEPT, "nccl-Ab12", "psm_8a7f"])
    finally:
        os.close(opened)
        mapped.close()


def test_only_own_regular_files_are_removed(
    shm: Path, namespace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "target").write_text("kept")
    (shm / "nccl-link").symlink_to(tmp_path / "target")
    (shm / "torch_folder").mkdir()
    assert remove_leftovers(shm, namespace) == 3
    assert (tmp_path / "target").exists()
    assert sorted(each.name for each in shm.iterdir()) == sorted([*KEPT, "nccl-link", "torch_folder"])
    (shm / "psm_1").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert remove_leftovers(shm, namespace) == 0


def test_shared_memory_of_the_node_is_left_alone(shm: Path, tmp_path: Path) -> None:
    node = tmp_path / "node"
    node.symlink_to(HOST_NAMESPACE)
    assert remove_leftovers(shm, node) == 0
    assert remove_leftovers(shm, tmp_path / "nothing") == 0
    assert len(list(shm.iterdir())) == 6
    assert remove_leftovers(tmp_path / "nothing") == 0


RESTARTS = """
import functools, os, pathlib, sys
from trainyard_agent import worker
from trainyard_agent.attempt import Command
from trainyard_agent.container_restart import ContainerRestart
from trainyard_agent.group import Group
from trainyard_agent.orders import Final, OperatorView
from trainyard_agent.probe_state import ProbeState
shm, namespace = map(pathlib.Path, sys.argv[1:])
worker.remove_leftovers = functools.partial(worker.remove_leftovers, shm, namespace)
class Fails:
    is_active = True
    def view(self, since): return OperatorView(None, Final.OVER, answered=True, silence=0.0)
    def report(self, *_, **__): pass
    def report_idle(self, *_): pass
    def pending_stacks(self): return None
    def report_stacks(self, *_): pass
with Group() as group:
    command = Command(["sh", "-c", f"touch {shm}/nccl-of-a-rank; exit 3"], starts_ranks=False)
    restarts, probes = ContainerRestart({}, print), ProbeState({}, print)
    print(worker.Worker(command, os.environ, group, Fails(), print, restarts, probes).run(wait=False).code)
"""


def test_next_attempt_starts_without_leftovers(shm: Path, namespace: Path) -> None:
    environment = {**os.environ, **WORKER_VARIABLES, "PYTHONPATH": str(AGENT_SOURCE)}
    command = [sys.executable, "-c", RESTARTS, str(shm), str(namespace)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines()[-2:] == [
        "removed files in shared memory that ranks had left behind files=4",
        "3",
    ], done.stderr
    assert sorted(each.name for each in shm.iterdir()) == KEPT
