"""Where the ranks of a pod leave their readings for the one that is asked for metrics: a file each, in memory.

Each holds a lock on its file for as long as it lives. The kernel lets the lock go with the process, however that ends: so what a rank that
killed rank is ignored, and needs no cleanup. A file that is read during a write fails its checksum. Never raises:
without a file, training continues.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard_torch.monitoring.rank_metrics import RankMetrics

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own in it
MAX_BYTES = 65536
GROUP_VARIABLES = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "TRAINYARD_JOB_UID")
"""What the ranks of a pod have in common, and those of another group on the same machine have not."""


def store_folder(environ: Mapping[str, str]) -> Path:
    """The folder of this pod's ranks: the same for all of them, and another one for each group on a machine."""
    base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    key = "\0".join(environ.get(name, "") for name in GROUP_VARIABLES).encode()
    return base / f"trainyard-watch-{os.geteuid()}-{zlib.crc32(key):08x}"


class MetricsStore:
    """The readings of a pod's ranks.

    Args:
        folder: the same for all of them, on this machine. It is made where it is not there.
        rank: this process's.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._file: int | None = None
        self._last: dict[str, RankMetrics] = {}
        self._silent = False

    def put(self, reading: RankMetrics) -> None:
        """Publish this rank's metrics. A failure is logged once, and retried the next time."""
        try:
            if self._file is None or not os.fstat(self._file).st_nlink:
                # Some programs clear /dev/shm at start.
                self._close()
                self._file = self._open()
            text = reading.text()
            os.pwrite(self._file, text, 0)
        except OSError as error:
            if not self._silent:
                logger.warning(
                    "rank %s cannot publish metrics in %s: %s; training continues", self._rank, self._folder, error
                )
            self._silent = True

    def others(self) -> list[RankMetrics]:
        """The readings of the other ranks that live, by rank."""
        try:
            names = [each.name for each in self._folder.iterdir() if each.name.isdecimal()]
        except OSError:
            return []
        found = [reading for name in names if int(name) != self._rank and (reading := self._read(name))]
        return sorted(found, key=lambda reading: reading.rank)

    def close(self) -> None:
        """Take this rank's file away, and the folder with the last one."""
        if self._file is not None:
            with suppress(OSError):
                (self._folder / str(self._rank)).unlink()
        self._close()
        with suppress(OSError):
            self._folder.rmdir()

    def _open(self) -> int:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        found = self._folder.lstat()
        # In a folder that all may write to, another user may have made it, or a link with its name.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{self._folder} is another user's, or no folder")
        path = self._folder / str(self._rank)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # What a process before it has left is not this one's.
            os.ftruncate(file, 0)
        except OSError:
            os.close(file)
            raise
        return file

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
        self._file = None

    def _read(self, name: str) -> RankMetrics | None:
        """What this rank has left; what it had before where it is just being written; None where it lives no more."""
        try:
            file = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            if not _locked(file):
                self._last.pop(name, None)
                return None
            reading = RankMetrics.parse(os.pread(file, MAX_BYTES, 0))
        except OSError:
            return None
        finally:
            os.close(file)
        if reading is None:
            return self._last.get(name)
        self._last[name] = reading
        return reading


def _locked(file: int) -> bool:
    """Whether another process holds it. POSIX locks, not flock's: those would live on in the processes that a rank has forked."""
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
