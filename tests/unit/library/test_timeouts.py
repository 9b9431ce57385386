"""A store that does not answer is waited for so long and no longer, and everything else of it is as without a bound."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard_torch.checkpoint import outputs
from trainyard_torch.checkpoint.outputs import LocalOutput, ObjectOutput
from trainyard_torch.checkpoint.store import Store, StoreError
from trainyard_torch.checkpoint.timeouts import AHEAD, CHUNK, NoResponseError, run_with_timeout

PATIENCE = 0.1


@pytest.fixture
def gone() -> Iterator[Callable[..., Any]]:
    """A call that comes back when the test is over."""
    over = threading.Event()
    yield lambda *_, **__: over.wait(20)
    over.set()


def patient(kind: str, folder: Path, patience: float = PATIENCE) -> Store:
    return Store(str(folder) if kind == "local" else f"memory://{folder}", timeout_seconds=patience)


def filled(store: Store, path: str, letters: bytes = bytes(3)) -> None:
    with store.writing(path) as stream:
        for letter in letters:
            assert stream.write(bytes([letter]) * CHUNK) == CHUNK, "torch's writer would tell an error of its own"


@pytest.fixture(params=["local", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return patient(request.param, tmp_path, 20)


def test_result_in_time_equals_an_unbounded_one() -> None:
    assert [run_with_timeout(seconds, lambda: 7) for seconds in (None, 20)] == [7, 7]

    def late() -> None:
        raise TimeoutError("its own")

    for seconds in (None, 20):
        with pytest.raises(TimeoutError, match="its own"):
            run_with_timeout(seconds, late)


def test_what_does_not_is_left_behind(gone: Callable[..., Any]) -> None:
    began = time.monotonic()
    with pytest.raises(NoResponseError):
        run_with_timeout(PATIENCE, gone)
    assert PATIENCE <= time.monotonic() - began < 5
    (left,) = [thread for thread in threading.enumerate() if thread.name == "store"]
    assert left.daemon, "it would keep the process alive"


@pytest.mark.parametrize(
    ("name", "act", "message"),
    [
        ("cat_file", lambda store: store.read("a"), "cannot read .*/a: no answer for 0.1 s"),
        ("ls", lambda store: store.files(), "cannot list .*/: no answer"),
        ("size", lambda store: store.size("a"), "cannot look at .*/a: no answer"),
        ("rm", lambda store: store.remove("a"), "cannot remove .*/a: no answer"),
        ("mv", lambda store: store.rename("a", "b"), "cannot write .*/b: no answer"),
        ("open", lambda store: store.measure("a"), "cannot read .*/a: no answer"),
    ],
)
@pytest.mark.parametrize("kind", ["local", "objects"])
def test_each_operation_has_a_bound(
    kind: str,
    name: str,
    act: Callable[[Store], object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gone: Callable[..., Any],
) -> None:
    store = patient(kind, tmp_path)
    store.write("a", b"1")
    # It may be one object for all stores of the process.
    monkeypatch.setattr(store._fs, name, gone)
    with pytest.raises(StoreError, match=message):
        act(store)
    assert store.unanswered == 1
    monkeypatch.undo()
    assert store.read("a") == b"1", "the next one is tried"


@pytest.mark.parametrize("step", ["write", "finish"])
@pytest.mark.parametrize("kind", ["local", "objects"])
def test_partially_written_file_does_not_appear(
    kind: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: Callable[..., Any]
) -> None:
    store = patient(kind, tmp_path)
    monkeypatch.setattr(LocalOutput if kind == "local" else ObjectOutput, step, gone)
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"cannot write .*/a/b: no answer for 0.1 s"):
        filled(store, "a/b")
    assert time.monotonic() - began < 5, "each part was waited for"
    assert store.unanswered == 1
    if kind == "local":
        assert store.read("a/b") is None


def test_written_bytes_are_those_of_their_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensor may change after a write, and the next part reuses the memory of the last."""
    taken: list[bytes] = []
    seen: list[bytes] = []
    monkeypatch.setattr(LocalOutput, "write", lambda _, content: taken.append(bytes(content)))
    monkeypatch.setattr(ObjectOutput, "write", lambda _, content: taken.append(bytes(content)))
    tensor = bytearray(b"x" * CHUNK + b"y" * 5)
    with store.writing("a", lambda content: seen.append(bytes(content))) as stream:
        stream.write(memoryview(tensor))
        tensor[:] = bytes(len(tensor))
    assert [len(part) for part in taken] == [CHUNK, 5]
    assert b"".join(taken) == b"".join(seen) == b"x" * CHUNK + b"y" * 5


@pytest.mark.parametrize("kind", ["local", "objects"])
def test_abandoned_write_keeps_its_bytes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is left behind may look at them when later parts are there."""
    go_on, ended, taken = threading.Event(), threading.Event(), []

    def hangs(_: object, content: memoryview) -> None:
        go_on.wait(20)
        taken.append(bytes(content))
        ended.set()

    monkeypatch.setattr(LocalOutput if kind == "local" else ObjectOutput, "write", hangs)
    with pytest.raises(StoreError, match="no answer"):
        filled(patient(kind, tmp_path), "a", b"xyz")
    go_on.set()
    assert ended.wait(20)
    assert taken == [b"x" * CHUNK]


def test_work_is_done_while_the_store_is_asked() -> None:
    asked, done = threading.Event(), threading.Event()

    def act() -> bool:
        asked.set()
        return done.wait(20)

    def work() -> None:
        assert asked.wait(20), "the store is asked after the work"
        done.set()

    assert run_with_timeout(20, act, work)
    assert run_with_timeout(None, lambda: 7, done.clear) == 7
    assert not done.is_set()


def test_write_error_is_reported_behind_torchs_writer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalOutput, "write", full)
    monkeypatch.setattr(ObjectOutput, "write", full)
    with pytest.raises(StoreError, match=r"cannot write .*/a: .*No space left on device"):
        filled(store, "a")
    assert store.unanswered == 0


def test_a_file_is_read_as_it_is(store: Store) -> None:
    content = bytes(range(251)) * (2 * AHEAD // 251)
    store.write("a", content)
    with store.reading("a") as stream:
        assert stream.seek(0, 2) == len(content)
        for place, size in ((0, 3), (AHEAD - 2, 5), (len(content) - 4, 10), (7, AHEAD + 9)):
            stream.seek(place)
            assert stream.read(size) == content[place : place + size]
            assert stream.tell() == min(place + size, len(content))
        stream.seek(11)
        assert stream.read() == content[11:]
        stream.seek(5)
        into = bytearray(AHEAD + 1)
        assert stream.readinto(into) == len(into)  # type: ignore[attr-defined]
        assert into == content[5 : 5 + len(into)]


def test_a_patience_that_is_none() -> None:
    with pytest.raises(ValueError, match="timeout_seconds must be a positive number of seconds, not 0"):
        Store("memory://x", timeout_seconds=0)


def test_large_file_is_flushed_while_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the end alone would take longer than an answer is waited for."""
    synced: list[int] = []
    monkeypatch.setattr(outputs, "SYNC", 2 * CHUNK)
    whole = os.fsync

    def sync(handle: int) -> None:
        synced.append(os.fstat(handle).st_size)
        whole(handle)

    monkeypatch.setattr("os.fsync", sync)
    with patient("local", tmp_path, 20).writing("a") as stream:
        for _ in range(5):
            stream.write(bytes(CHUNK))
    assert synced[:3] == [2 * CHUNK, 4 * CHUNK, 5 * CHUNK]
