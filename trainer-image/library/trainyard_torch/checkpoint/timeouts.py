"""Run operations that may never return, such as a write to a lost network volume, in a thread of their own, with a timeout.

An abandoned thread ends when its call returns, and its result is dropped. It must not hold memory of others, so data is copied before a
write and after a read.
"""

from __future__ import annotations

import io
import mmap
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
CHUNK = 2**24
"""The bytes of one write."""
AHEAD = 2**20
"""The bytes of one read."""
END_SECONDS = 1.0
"""How long the end of a thread is waited for that has given its answer."""


class NoResponseError(Exception):
    """The operation did not return in time."""


def nothing() -> None:
    """Do nothing."""


def run_with_timeout(seconds: float | None, act: Callable[[], T], meanwhile: Callable[[], object] = nothing) -> T:
    """Return the result of `act`, or raise its exception.

    Args:
        seconds: the timeout. None: none, and `act` runs in this thread.
        act: the operation. It may be abandoned in a daemon thread.
        meanwhile: work that is done in this thread while `act` runs: a checksum, which does not hold Python's lock.

    Raises:
        NoResponseError: the timeout has expired.
    """
    if seconds is None:
        meanwhile()
        return act()
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(act())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            answer.set_exception(error)

    thread = threading.Thread(target=run, name="store", daemon=True)
    thread.start()
    meanwhile()
    # Not `result(seconds)`: the operation may raise a TimeoutError of its own.
    if not wait([answer], seconds).done:
        raise NoResponseError
    join_answered(thread)
    return answer.result()


def join_answered(thread: threading.Thread) -> None:
    """Wait for the end of a daemon thread that has given its answer. Call it before the process may exit.

    The thread still drops its arguments. torch aborts a process whose thread frees a tensor while the interpreter exits.
    """
    thread.join(END_SECONDS)


class Bound(Protocol):
    """Runs operations with a timeout, which raises an exception."""

    def __call__(self, act: Callable[[], T], meanwhile: Callable[[], object] = ..., /) -> T:
        """Return the result of `act`. This thread does `meanwhile` during it."""


class Sink(io.RawIOBase):
    """A stream for sequential writes, with `finish` at its end.

    `finish` raises errors: torch's C++ writer would replace them by an error of its own.

    Args:
        write: takes the next bytes. It owns them until it returns, and for ever if it does not.
        bound: runs it with a timeout.
        observe: gets the same bytes while they are written.
    """

    def __init__(
        self, write: Callable[[memoryview], object], bound: Bound, observe: Callable[[memoryview], object]
    ) -> None:
        super().__init__()
        self._write, self._bound, self._observe = write, bound, observe
        self._chunk, self._filled = memoryview(b""), 0
        self._wrong: Exception | None = None

    @override
    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        begin = 0
        while begin < len(view) and not self._wrong:
            if not self._chunk:
                # Its pages appear as they are used: many files are small.
                self._chunk = memoryview(mmap.mmap(-1, CHUNK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            part = view[begin : begin + CHUNK - self._filled]
            _copy(part, self._chunk[self._filled : self._filled + len(part)])
            self._filled += len(part)
            begin += len(part)
            if self._filled == CHUNK:
                self._hand_on()
        return len(view)

    @override
    def writable(self) -> bool:
        return True

    def finish(self) -> None:
        """Finish the stream. Raises the first error of all writes."""
        self._hand_on()
        if self._wrong:
            raise self._wrong

    def _hand_on(self) -> None:
        content, self._filled = self._chunk[: self._filled], 0
        if content and not self._wrong:
            try:
                self._bound(lambda: self._write(content), lambda: self._observe(content))
            except Exception as error:  # noqa: BLE001 - see above
                # The thread may still write it.
                self._wrong, self._chunk = error, memoryview(b"")


def _copy(source: memoryview, target: memoryview) -> None:
    """Copy bytes without Python's lock, which an assignment to a slice holds: the training would wait for each chunk."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


class Source(io.RawIOBase):
    """A seekable stream for reads, to be wrapped by `io.BufferedReader`.

    Args:
        stream: the stream of a file system.
        bound: runs reads with a timeout.
    """

    def __init__(self, stream: Any, bound: Bound) -> None:
        super().__init__()
        self._stream, self._bound = stream, bound

    @override
    def readinto(self, buffer: Any) -> int:
        size = len(buffer)
        found: bytes = self._bound(lambda: self._stream.read(size))
        buffer[: len(found)] = found
        return len(found)

    @override
    def readall(self) -> bytes:
        found: bytes = self._bound(self._stream.read)
        return found

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        place: int = self._stream.seek(offset, whence)
        return place

    @override
    def tell(self) -> int:
        place: int = self._stream.tell()
        return place

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True
