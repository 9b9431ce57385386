"""Run operations that may never return, such as a write to a lost network volume, in a thread of their own, with a timeout.

An abandoned thread ends when its call returns, and its result is dropped. It must not hold memory of others, so data is copied before a
write and after a read.
"""

from __future__ import annotations

import io
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
CHUNK = 2**22
"""The bytes of one write."""
AHEAD = 2**20
"""The bytes of one read."""


class NoResponseError(Exception):
    """The operation did not return in time."""


def run_with_timeout(seconds: float | None, act: Callable[[], T]) -> T:
    """Return the result of `act`, or raise its exception.

    Args:
        seconds: the timeout. None: none, and `act` runs in this thread.
        act: the operation. It may be abandoned in a daemon thread.

    Raises:
        NoResponseError: the timeout has expired.
    """
    if seconds is None:
        return act()
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(act())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, name="store", daemon=True).start()
    # Not `result(seconds)`: the operation may raise a TimeoutError of its own.
    if not wait([answer], seconds).done:
        raise NoResponseError
    return answer.result()


class Bound(Protocol):
    """Runs operations with a timeout, which raises an exception."""

    def __call__(self, act: Callable[[], T], /) -> T:
        """Return the result of `act`."""


class Sink(io.RawIOBase):
    """A stream for sequential writes, with `finish` at its end.

    `finish` raises errors: torch's C++ writer would replace them by an error of its own.

    Args:
        write: takes the next bytes, and owns them.
        bound: runs it with a timeout.
    """

    def __init__(self, write: Callable[[bytearray], object], bound: Bound) -> None:
        super().__init__()
        self._write, self._bound = write, bound
        self._chunk = bytearray()
        self._wrong: Exception | None = None

    @override
    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), CHUNK):
            self._chunk += view[begin : begin + CHUNK]
            if len(self._chunk) >= CHUNK:
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
        chunk, self._chunk = self._chunk, bytearray()
        if chunk and not self._wrong:
            try:
                self._bound(lambda: self._write(chunk))
            except Exception as error:  # noqa: BLE001 - see above
                self._wrong = error


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
