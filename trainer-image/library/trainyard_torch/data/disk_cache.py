"""A bounded cache of blocks on a local disk, shared by all processes of a node. Independent of the content and its origin.

A node reads each block once, although each of its processes needs some of its samples.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import uuid
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard_torch.data.disk_usage import PARTIAL, DiskUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)
LOCKS = 256
USAGE_LOCK = "lock-room"
"""The lock for removing blocks. The file holds the sum of their bytes."""


@dataclass(frozen=True, slots=True)
class DiskCache:
    """A cache folder. Other files in it are kept and do not count.

    Attributes:
        folder: a folder on a disk of the node. It is created if missing.
        size: the limit in bytes. The least recently used blocks are evicted first. Blocks that are being written may exceed the limit.
                Until the next scan, one block for each process that was killed while writing may do so, too. A scan happens when space runs out.

    Raises:
        ValueError: the size is negative.
    """

    folder: str
    size: int
    _warned: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)
    _usage: DiskUsage = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size must be from 0 on, in bytes, got {self.size}")
        object.__setattr__(self, "_usage", DiskUsage(Path(self.folder), self.size))

    def get(self, key: str, whole: Callable[[bytes], bool], read: Callable[[], bytes]) -> bytes:
        """Return the block of a key from the disk. If it is missing, one process of the node calls `read`, and the others wait for it.

        Args:
            key: any text. Different content needs a different key.
            whole: returns whether the content is complete. An incomplete file is read again.
            read: reads the block, or raises.

        Errors of the folder cost time and are logged; the block is read anyway.
        """
        name = hashlib.sha256(key.encode()).hexdigest()
        path = Path(self.folder, name)
        with ExitStack() as stack:
            try:
                with suppress(FileNotFoundError):
                    return self._found(path, whole)
                path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(self._locked(f"lock-{int(name, 16) % LOCKS:03}"))
                with suppress(FileNotFoundError):
                    return self._found(path, whole)
            except OSError as error:
                self._warn(error)
            content = read()
            try:
                self._write(path, content)
            except OSError as error:
                self._warn(error)
                return content
        try:
            with self._locked(USAGE_LOCK):
                self._usage.add(Path(self.folder, USAGE_LOCK), len(content))
        except OSError as error:
            self._warn(error)
        return content

    def _found(self, path: Path, whole: Callable[[bytes], bool]) -> bytes:
        content = path.read_bytes()
        if not whole(content):
            raise FileNotFoundError(path)
        # File systems that are mounted with noatime do not record the time of a read.
        os.utime(path)
        return content

    def _write(self, path: Path, content: bytes) -> None:
        partial = path.with_name(f"{path.name}{PARTIAL}-{uuid.uuid4().hex}")
        try:
            partial.write_bytes(content)
            # If few blocks fit, another process may have evicted this one as the oldest.
            with suppress(FileNotFoundError):
                partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned.append(True)
            logger.warning("the cache of blocks in %s is of no use: %s; blocks are read without it", self.folder, error)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """A lock that the kernel releases when its process, and all processes that were forked while it was held, have exited."""
        with Path(self.folder, name).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # Closing the file would leave the lock to a process that was forked in between.
                fcntl.flock(file, fcntl.LOCK_UN)
