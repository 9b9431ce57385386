import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from trainyard_torch.data import ReadError, RetryPolicy
from trainyard_torch.data.blocks import Blocks, ClosedError
from trainyard_torch.data.disk_cache import DiskCache
from trainyard_torch.data.range_reader import RangeReader

CONTENT = bytes(range(200))
AT_ONCE = RetryPolicy(attempts=4, initial_seconds=0)


class Shop(ThreadingHTTPServer):
    """A store with one file, whose first answers are given."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Clerk)
        self.first: list[int | str] = []
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file"


class Clerk(BaseHTTPRequestHandler):
    server: Shop

    def do_HEAD(self) -> None:
        self._answer(CONTENT, 200, body=False)

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.asked.append(wanted)
        reply = self.server.first.pop(0) if self.server.first else 206
        if reply == "whole":
            self._answer(CONTENT, 200)
        elif isinstance(reply, int) and reply != 206:
            self._answer(b"", reply)
        else:
            begin, end = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted).groups()  # type: ignore[union-attr]
            part = CONTENT[int(begin) : int(end) + 1]
            self._answer(part[:-1] if reply == "short" else part, 206)

    def _answer(self, content: bytes, status: int, *, body: bool = True) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if body:
            self.wfile.write(content)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def shop() -> Iterator[Shop]:
    server = Shop()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_only_what_is_asked_for_is_read(shop: Shop) -> None:
    reads = RangeReader(shop.url)
    assert reads.size() == 200
    assert reads.range(10, 20) == CONTENT[10:20]
    assert (shop.asked, reads.count, reads.bytes) == (["bytes=10-19"], 1, 10)


@pytest.mark.parametrize("first", [[503, 500, "short"], ["short"], [429]])
def test_a_store_that_recovers_is_asked_again(shop: Shop, first: list[int | str]) -> None:
    shop.first = [*first]
    assert RangeReader(shop.url, retry=AT_ONCE).range(0, 9) == CONTENT[:9]
    assert len(shop.asked) == len(first) + 1


def test_a_store_that_does_not_recover_is_reported(shop: Shop) -> None:
    shop.first = [503] * 9
    with pytest.raises(ReadError, match=rf"bytes 0 to 9 of {shop.url}: tried 4 times, and the answer was .*503"):
        RangeReader(shop.url, retry=AT_ONCE).range(0, 9)
    assert len(shop.asked) == 4


def test_a_store_without_ranges_is_reported(shop: Shop) -> None:
    shop.first = ["whole"] * 9
    with pytest.raises(ReadError, match=r"the answer was 200 bytes: .*or its store knows no ranges"):
        RangeReader(shop.url, retry=AT_ONCE).range(0, 9)


def test_a_file_that_is_too_short_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    with pytest.raises(ReadError, match="the answer was 10 bytes: the file was cut off"):
        RangeReader(str(tmp_path / "file"), retry=AT_ONCE).range(190, 220)


def test_missing_object_is_not_requested_again(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"cannot read all of .*/none: FileNotFoundError"):
        RangeReader(str(tmp_path), retry=RetryPolicy(initial_seconds=20)).whole("none")


def test_delays_grow() -> None:
    assert list(RetryPolicy(attempts=6, initial_seconds=1, max_seconds=5).delays()) == [1, 2, 4, 5, 5]
    assert list(RetryPolicy(attempts=1).delays()) == []


def test_wait_for_a_retry_can_be_cancelled(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    closed = threading.Event()
    closed.set()
    with pytest.raises(ReadError, match="was closed after 1 tries"):
        RangeReader(str(tmp_path / "file"), retry=RetryPolicy(initial_seconds=20)).range(0, 1, closed=closed)


def test_it_can_go_to_another_process(tmp_path: Path) -> None:
    reads = RangeReader("memory://here", {"skip_instance_cache": True}, AT_ONCE)
    other = pickle.loads(pickle.dumps(reads))  # noqa: S301 - our own
    assert (other.url, other.options, other.retry) == (reads.url, reads.options, reads.retry)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RetryPolicy(attempts=0), ValueError, "attempts must be from 1"),
        (
            lambda: RetryPolicy(initial_seconds=3, max_seconds=2),
            ValueError,
            "initial_seconds must be from 0 to max_seconds",
        ),
        (lambda: RangeReader("s3:bucket"), ReadError, "neither a path nor a URL"),
        (lambda: RangeReader("nowhere://a"), ReadError, "nowhere"),
        (lambda: Blocks(bytes_of, lambda _: 1, -1, 1), ValueError, "memory must be from 0"),
        (lambda: Blocks(bytes_of, lambda _: 1, 1, 0), ValueError, "threads must be from 1"),
        (lambda: DiskCache("cache", -1), ValueError, "size must be from 0"),
    ],
)
def test_numbers_that_make_no_sense(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def bytes_of(number: int, closed: threading.Event) -> bytes:
    return bytes([number]) * 10


class Asked:
    """Reads of blocks of ten bytes, that can be held up."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self.broken = False

    def __call__(self, number: int, closed: threading.Event) -> bytes:
        self.numbers.append(number)
        while not self.go.wait(0.01):
            if closed.is_set():
                raise ReadError("sent home")
        if self.broken:
            raise ReadError("the store is down")
        return bytes_of(number, closed)


def test_a_block_is_read_once_for_all_readers() -> None:
    asked = Asked()
    blocks = Blocks(asked, lambda _: 10, 100, 2)
    asked.go.clear()
    blocks.begin([1, 2])
    threads = [threading.Thread(target=blocks.get, args=([1, 2],)) for _ in range(3)]
    for thread in threads:
        thread.start()
    asked.go.set()
    for thread in threads:
        thread.join()
    assert blocks.get([2, 1]) == {1: bytes([1]) * 10, 2: bytes([2]) * 10}
    assert sorted(asked.numbers) == [1, 2]
    blocks.close()


def test_least_recently_used_block_is_dropped() -> None:
    asked = Asked()
    blocks = Blocks(asked, lambda _: 10, 30, 1)
    for number in (1, 2, 3, 1, 4, 1, 3, 2):
        blocks.get([number])
    assert asked.numbers == [1, 2, 3, 4, 2]
    assert sum(len(held.blocks) for held in blocks._held.values()) == 3
    blocks.close()


def test_block_needed_at_once_is_held_however_large() -> None:
    blocks = Blocks(Asked(), lambda _: 10, 0, 2)
    assert list(blocks.get(range(5))) == [0, 1, 2, 3, 4]
    blocks.get([7])
    assert [list(held.blocks) for held in blocks._held.values()] == [[7]]
    blocks.close()


def test_unread_block_is_tried_again() -> None:
    asked = Asked()
    blocks = Blocks(asked, lambda _: 10, 100, 1)
    asked.broken = True
    for _ in range(2):
        with pytest.raises(ReadError, match="the store is down"):
            blocks.get([1])
    asked.broken = False
    assert blocks.get([1])[1] == bytes([1]) * 10
    assert [held.bytes for held in blocks._held.values()] == [10]
    blocks.close()


def test_closing_sends_all_home() -> None:
    asked = Asked()
    blocks = Blocks(asked, lambda _: 10, 100, 1)
    asked.go.clear()
    errors: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            blocks.get([number])
        except (ReadError, ClosedError) as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in (1, 2)]
    before = threading.active_count()
    for thread in threads:
        thread.start()
    while len(next(iter(blocks._held.values()), Never()).blocks) < 2:
        pass
    blocks.close()
    for thread in threads:
        thread.join()
    assert {type(error) for error in errors} == {ReadError, ClosedError}
    assert threading.active_count() == before
    asked.go.set()
    assert blocks.get([1])
    blocks.close()


class Never:
    blocks = ()


def test_disk_is_read_first_if_whole(tmp_path: Path) -> None:
    disk, read = DiskCache(str(tmp_path / "cache"), 100), Counted(b"content")
    for _ in range(2):
        assert disk.get("key", b"content".__eq__, read) == b"content"
    assert read.count == 1
    for file in (tmp_path / "cache").iterdir():
        if not file.name.startswith("lock"):
            file.write_bytes(b"conten")
    assert disk.get("key", b"content".__eq__, read) == b"content"
    assert read.count == 2


def test_a_disk_has_its_bound(tmp_path: Path) -> None:
    disk = DiskCache(str(tmp_path), 30)
    for number in range(6):
        disk.get("first", lambda _: True, Counted(bytes(10)))
        disk.get(str(number), lambda _: True, Counted(bytes(10)))
        # Times of files may be as coarse as the kernel's clock.
        for age, file in enumerate(sorted(kept(tmp_path), key=lambda file: file.stat().st_mtime_ns)):
            os.utime(file, ns=(age, age))
    first = Counted(bytes(10))
    disk.get("first", lambda _: True, first)
    assert first.count == 0, "it was used all the time"
    assert len(kept(tmp_path)) == 3


def test_processes_of_a_node_read_a_block_once(tmp_path: Path) -> None:
    context = get_context("forkserver")
    ours, theirs = context.Pipe()
    together = context.Barrier(3)
    processes = [context.Process(target=_one, args=(str(tmp_path), theirs, together)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sum(ours.recv() for _ in processes) == 1


def _one(folder: str, results: Connection, together: Barrier) -> None:
    read = Counted(b"content")

    def slowly() -> bytes:
        time.sleep(0.2)  # so that all have looked for the file before there is one
        return read()

    together.wait()
    DiskCache(folder, 100).get("key", b"content".__eq__, slowly)
    results.send(read.count)


def kept(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if not file.name.startswith("lock-")]


class Counted:
    def __init__(self, content: bytes) -> None:
        self.content, self.count = content, 0

    def __call__(self) -> bytes:
        self.count += 1
        return self.content


def test_delays_of_processes_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ReadError):
        RangeReader(str(tmp_path / "file"), retry=RetryPolicy(attempts=5, initial_seconds=1, max_seconds=100)).range(
            0, 1
        )
    assert all(low / 2 <= wait <= low for low, wait in zip([1, 2, 4, 8], waited, strict=True))
    assert all(before < after for before, after in pairwise(waited))
