"""Files that appear atomically when they are finished: in memory, on a disk, or in an object store."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

PARTIAL = ".partial-"
"""In the name of a file that is being written."""
SYNC = 2**28
"""So many bytes at a time are brought to the disk: all of a large file at its end could take longer than an answer is waited for."""


class Output(Protocol):
    """A file being written. Each call may block, possibly forever."""

    def write(self, content: bytes | bytearray, /) -> None:
        """Add this."""

    def finish(self) -> None:
        """That was all: the file is there."""

    def drop(self) -> None:
        """It is given up: nothing is there, as far as that can be."""

    def leave(self) -> None:
        """It does not answer: from now on nothing is done with it, not even when it is thrown away."""


class LocalOutput:
    """A file on a file system of the machine's: it gets its name when all of it is on the disk.

    Args:
        path: its name.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._partial = path, path.with_name(f"{path.name}{PARTIAL}{uuid.uuid4().hex}")
        # A number, and no file object: that is closed when it is thrown away, and to close what does not answer may take for ever.
        self._handle = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._unsaved = 0

    def write(self, content: bytes | bytearray, /) -> None:
        """Add this."""
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._handle, rest) :]
        self._unsaved += len(content)
        if self._unsaved >= SYNC:
            os.fsync(self._handle)
            self._unsaved = 0

    def finish(self) -> None:
        """That was all: the file is there."""
        os.fsync(self._handle)
        self._close()
        self._partial.replace(self._path)
        sync(self._path.parent)

    def drop(self) -> None:
        """It is given up: nothing is there."""
        with suppress(OSError):
            self._close()
        self._partial.unlink(missing_ok=True)

    def leave(self) -> None:
        """It does not answer: from now on nothing is done with it. Its file stays open."""

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class ObjectOutput:
    """A file in an object store, which becomes visible when it is closed.

    Args:
        files: fsspec's file system.
        path: its name there.
    """

    def __init__(self, files: Any, path: str) -> None:
        self._files, self._path = files, path
        self._stream = files.open(path, "wb")

    def write(self, content: bytes | bytearray, /) -> None:
        """Add this."""
        self._stream.write(content)

    def finish(self) -> None:
        """That was all: the file is there."""
        self._stream.close()

    def drop(self) -> None:
        """It is given up: nothing is there, as far as the store can be reached."""
        self.leave()
        with suppress(Exception):
            self._stream.discard()
        with suppress(Exception):
            self._files.rm_file(self._path)

    def leave(self) -> None:
        """It does not answer: from now on nothing is done with it."""
        # Closing it would store the partial content.
        self._stream.close = lambda: None


def sync(path: Path) -> None:
    """That there are these files in a folder outlives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
