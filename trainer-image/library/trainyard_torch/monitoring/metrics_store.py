"""Files in memory by which the ranks of a pod share their metrics with the rank that serves them.

Each rank holds a lock on its file while it lives. The kernel releases the lock when the process exits, however it exits. So the file of a
killed rank is ignored, and needs no cleanup. A file that is read during a write fails its checksum. Nothing raises: without a file,
training continues.
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
"""The variables that are equal for the ranks of a pod, and differ from those of another group on the same machine."""


def store_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of this pod's ranks: the same for all of them, and another one for each group on a machine."""
    base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    key = "\0".join(environ.get(name, "") for name in GROUP_VARIABLES).encode()
    return base / f"trainyard-watch-{os.geteuid()}-{zlib.crc32(key):08x}"


class MetricsStore:
    """The metrics of a pod's ranks.

    Args:
        folder: the same folder for all ranks, on this machine. It is created if missing.
        rank: the rank of this process.
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
                # Some programs clear /dev/shm at their start.
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
        """Return the metrics of the other running ranks by rank."""
        try:
            names = [each.name for each in self._folder.iterdir() if each.name.isdecimal()]
        except OSError:
            return []
        found = [reading for name in names if int(name) != self._rank and (reading := self._read(name))]
        return sorted(found, key=lambda reading: reading.rank)

    def close(self) -> None:
        """Remove this rank's file, and the folder with the last file."""
        if self._file is not None:
            with suppress(OSError):
                (self._folder / str(self._rank)).unlink()
        self._close()
        with suppress(OSError):
            self._folder.rmdir()

    def _open(self) -> int:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        found = self._folder.lstat()
        # In a folder that is writable for all, another user may have created it, or a link with its name.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{self._folder} is another user's, or no folder")
        path = self._folder / str(self._rank)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The content of an earlier process is not this one's.
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
        """Return the metrics of a rank; its previous ones during a write; None if it has exited."""
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
    """Return whether another process holds the lock. POSIX locks: those of flock would survive in processes that a rank has forked."""
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
