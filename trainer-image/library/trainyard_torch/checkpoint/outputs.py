"""Files that appear atomically when they are complete: in memory, on a disk, or in an object store."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

PARTIAL = ".partial-"
"""A part of the name of a file that is being written."""
SYNC = 2**28
"""The bytes between two syncs to the disk: one sync of a large file at its end could take longer than the timeout."""


class Output(Protocol):
    """A file being written. Each call may block, possibly forever."""

    def write(self, content: bytes | memoryview, /) -> None:
        """Add these bytes, which may change after the call."""

    def finish(self) -> None:
        """Finish: the file appears."""

    def drop(self) -> None:
        """Abandon the file, and remove it if possible."""

    def leave(self) -> None:
        """The store does not answer: do nothing more with the file, not even when it is garbage-collected."""


class LocalOutput:
    """A file on a local file system. It gets its name when all of it is on the disk.

    Args:
        path: its name.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._partial = path, path.with_name(f"{path.name}{PARTIAL}{uuid.uuid4().hex}")
        # A descriptor and no file object, which would be closed by garbage collection: closing a file that does not answer may block for ever.
        self._handle = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._unsaved = 0

    def write(self, content: bytes | memoryview, /) -> None:
        """Add these bytes."""
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._handle, rest) :]
        self._unsaved += len(content)
        if self._unsaved >= SYNC:
            os.fsync(self._handle)
            self._unsaved = 0

    def finish(self) -> None:
        """Finish: the file appears."""
        os.fsync(self._handle)
        self._close()
        self._partial.replace(self._path)
        sync(self._path.parent)

    def drop(self) -> None:
        """Abandon the file, and remove it."""
        with suppress(OSError):
            self._close()
        self._partial.unlink(missing_ok=True)

    def leave(self) -> None:
        """The file system does not answer: do nothing more with the file. It stays open."""

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

    def write(self, content: bytes | memoryview, /) -> None:
        """Add these bytes."""
        self._stream.write(content)

    def finish(self) -> None:
        """Finish: the file appears."""
        self._stream.close()

    def drop(self) -> None:
        """Abandon the file, and remove it if the store can be reached."""
        self.leave()
        with suppress(Exception):
            self._stream.discard()
        with suppress(Exception):
            self._files.rm_file(self._path)

    def leave(self) -> None:
        """The store does not answer: do nothing more with the file."""
        # Closing it would store the partial content.
        self._stream.close = lambda: None


def sync(path: Path) -> None:
    """Sync a folder, so that its files survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
