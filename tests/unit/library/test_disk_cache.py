"""The cache of blocks on a node's disk: within its bound, without a look at all files for each block."""

import hashlib
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from trainyard_torch.data import DiskCache

BLOCK = b"block"
FITS = 20
SIZE = FITS * len(BLOCK)


def no_matter(_: bytes) -> bool:
    return True


def get(disk: DiskCache, number: int) -> None:
    assert disk.get(f"key-{number}", no_matter, lambda: BLOCK) == BLOCK


def block(folder: Path, number: int) -> Path:
    return folder / hashlib.sha256(f"key-{number}".encode()).hexdigest()


def held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if not path.name.startswith("lock-"))


def test_the_folder_is_looked_at_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, iterdir = [], Path.iterdir

    def counted(path: Path) -> Iterator[Path]:
        looks.append(path)
        return iterdir(path)

    disk, most = DiskCache(str(tmp_path), SIZE), 0
    monkeypatch.setattr(Path, "iterdir", counted)
    for number in range(15 * FITS):
        get(disk, number)
        most = max(most, sum(entry.stat().st_size for entry in os.scandir(tmp_path) if len(entry.name) == 64))
    assert most == SIZE
    assert len(looks) <= 16, "one for each filling, and the first"


def test_what_was_used_since_the_last_look_stays(tmp_path: Path) -> None:
    disk = DiskCache(str(tmp_path), SIZE)
    for number in range(FITS):
        get(disk, number)
        os.utime(block(tmp_path, number), ns=(number, number))
    get(disk, FITS)
    assert not block(tmp_path, 0).exists()
    # It was seen as the next to go.
    get(disk, 1)
    get(disk, FITS + 1)
    assert block(tmp_path, 1).exists()
    assert not block(tmp_path, 2).exists()
    assert held(tmp_path) == SIZE


def test_what_lay_there_before_counts(tmp_path: Path) -> None:
    """By a release that kept no sum, and by a process that was killed while it wrote."""
    for number in range(FITS):
        block(tmp_path, number).write_bytes(BLOCK)
    block(tmp_path, FITS).with_name(f"{'0' * 64}.partial-{'0' * 32}").write_bytes(BLOCK)
    (tmp_path / "lock-room").touch()
    get(DiskCache(str(tmp_path), SIZE), FITS + 1)
    assert held(tmp_path) == SIZE


def test_cached_knowledge_is_not_sent_to_processes(tmp_path: Path) -> None:
    disk = DiskCache(str(tmp_path), SIZE)
    for number in range(2 * FITS):
        get(disk, number)
    stored = pickle.dumps(disk)
    assert len(stored) < 1000
    there = pickle.loads(stored)  # noqa: S301 - our own
    assert there == disk
    get(there, -1)
    assert held(tmp_path) == SIZE


ACTS = st.one_of(
    st.tuples(st.sampled_from(["one", "other"]), st.integers(0, 60)),
    st.tuples(st.sampled_from(["remove", "spoil", "forget"]), st.integers(0, 60)),
)


@given(st.lists(ACTS, max_size=120))
def test_bound_holds_for_any_writers_and_files(acts: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        disks = {"one": DiskCache(name, SIZE), "other": DiskCache(name, SIZE)}
        for act, number in acts:
            if act in disks:
                get(disks[act], number)
            elif act == "remove":
                block(folder, number).unlink(missing_ok=True)
            elif act == "spoil":
                (folder / "lock-room").write_text("?" * number)
            else:
                (folder / "lock-room").unlink(missing_ok=True)
            assert held(folder) <= SIZE
