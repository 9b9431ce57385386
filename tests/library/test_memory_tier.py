"""Checkpoints in memory: within the pod's limit, and in a folder that no other user can read, replace or prepare."""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from tests.library.support.processes import run
from trainyard_torch import CheckpointPolicy, Checkpoints, SaveInterval, StoreError, Tier
from trainyard_torch.checkpoint import memory as module
from trainyard_torch.checkpoint.host_memory import HostMemory
from trainyard_torch.checkpoint.manifest import CorruptCheckpointError, Manifest, Name
from trainyard_torch.checkpoint.memory import FOLDER, Memory, size_of

if TYPE_CHECKING:
    from pathlib import Path

STATE = {"m": {"w": torch.ones(1000), "n": [torch.ones(10, dtype=torch.float64), "text"]}}
OWN = f"{FOLDER}-{os.geteuid()}"


def in_memory(folder: Path) -> CheckpointPolicy:
    return CheckpointPolicy(memory=SaveInterval(steps=1), memory_dir=str(folder))


def written(folder: Path, rank: int = 0) -> Memory:
    memory = Memory(str(folder), "store", rank)
    memory.reserve(STATE)
    memory.write(Manifest(1, 1, 1), "mark", STATE)
    return memory


def test_size_counts_all_tensors() -> None:
    assert size_of(STATE) == 4000 + 80


@pytest.mark.parametrize(
    ("processes", "free", "fits"),
    [(1, 4080 + 200, True), (1, 4079 + 200, False), (4, 4 * 4080 + 200, True), (4, 4 * 4080 + 199, False)],
)
def test_parts_of_a_pod_fit_its_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    free: int,
    fits: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    monkeypatch.setattr(module, "host_memory", lambda: HostMemory(6400, free))
    memory = Memory(str(tmp_path), "store", 0, processes)
    if fits:
        memory.reserve(STATE)
        return
    with pytest.raises(StoreError, match=f"the {processes} processes of this pod need .* GB of the memory limit"):
        memory.reserve(STATE)


def test_store_is_used_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(str(tmp_path / "store"), policy=in_memory(tmp_path / "shm"))
    checkpoints.load(STATE)
    monkeypatch.setattr(module, "host_memory", lambda: HostMemory(6400, 4000))
    for step in (1, 2, 3):
        checkpoints.save(step, STATE)
    checkpoints.close()
    assert not [*(tmp_path / "shm").rglob("*.pt*")], "nothing was written that the kernel would kill for"
    assert len([text for text in caplog.messages if "not kept in memory" in text]) == 1
    assert (tmp_path / "store/LATEST").read_text() == "step-000000000003-000001\n"
    assert checkpoints.failures == 0


def short_on_one(folder: Path) -> tuple[list[str], int]:
    """Rank 1 finds no room for both parts: none of them is written."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("trainyard_torch").addHandler(handler)
    free = 10**9 if dist.get_rank() == 0 else 5000
    module.host_memory = lambda: HostMemory(10**9, free)  # type: ignore[assignment,attr-defined,misc]  # a module's import is replaced
    checkpoints = Checkpoints(str(folder / "store"), policy=in_memory(folder / "shm"))
    state: dict[str, Any] = {f"rank{dist.get_rank()}": {"w": torch.ones(1000)}}
    checkpoints.load(state)
    checkpoints.save(1, state, tier=Tier.MEMORY)
    checkpoints.save(2, state)
    checkpoints.close()
    return logged, len([*(folder / "shm").rglob("*.pt*")])


def test_no_rank_writes_if_one_lacks_room(tmp_path: Path) -> None:
    (logged, files), (_, _) = run(2, tmp_path, short_on_one, tmp_path)
    (warning,) = [text for text in logged if "not kept in memory" in text]
    assert "rank 1: cannot write" in warning
    assert "the 2 processes of this pod need" in warning
    assert files == 0


def test_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        memory = written(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / OWN).stat().st_mode) == 0o700
    assert memory.names() == [Name(1, 1)]


def linked(folder: Path, elsewhere: Path) -> None:
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)


def another_users(folder: Path, _: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)


def open_to_all(folder: Path, _: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


@pytest.mark.parametrize("prepared", [linked, another_users, open_to_all])
def test_prepared_folder_is_not_used(tmp_path: Path, prepared: Any) -> None:
    if prepared is another_users and os.geteuid():
        pytest.skip("only root may give a folder to another user")
    prepared(tmp_path / OWN, tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"is not a folder|must be this user's, with mode 700"):
        written(tmp_path)
    assert not [*tmp_path.rglob("*.pt*")]


@pytest.mark.parametrize("prepared", [linked, another_users, open_to_all])
def test_checkpoint_of_another_user_is_not_read(tmp_path: Path, prepared: Any) -> None:
    """Another user has put a valid checkpoint where this one is expected: it is neither found, read nor removed."""
    if prepared is another_users and os.geteuid():
        pytest.skip("only root may give a folder to another user")
    memory = written(tmp_path)
    (tmp_path / OWN).rename(tmp_path / "theirs")
    prepared(tmp_path / OWN, tmp_path / "elsewhere")
    (inner,) = (tmp_path / "theirs").iterdir()
    place = (tmp_path / OWN).resolve()
    inner.rename(place / inner.name)
    assert memory.names() == []
    with pytest.raises(CorruptCheckpointError, match=r"is not a folder|must be this user's"):
        memory.read(Name(1, 1), {1: "mark"})
    memory.keep(None)
    assert len([*place.rglob("*.pt")]) == 1
