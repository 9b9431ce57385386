"""Count the bytes of a folder of blocks without a scan each time, and choose the blocks to evict.

The sum is in a file that all processes of the node share, under a lock that the caller holds. The next scan corrects it for files that were
removed by hand or left by a killed process. A scan happens when space runs out and the oldest files of the last scan are gone.
"""

from __future__ import annotations

import re
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

if TYPE_CHECKING:
    from pathlib import Path

PARTIAL = ".partial"
OURS = re.compile(rf"[0-9a-f]{{64}}({PARTIAL}-[0-9a-f]{{32}})?")
DIGITS = 20


class _Seen(NamedTuple):
    """A file as the last scan saw it. The least recently used file sorts first."""

    used: int
    size: int
    path: Path


class DiskUsage:
    """The files of a folder. It may be given to other processes; each has its own last scan.

    Args:
        folder: only files with the naming scheme of this cache count.
        size: the limit in bytes.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size
        self._oldest: deque[_Seen] = deque()

    @override
    def __getstate__(self) -> dict[str, Any]:
        # The last scan of this process is of no use to another one.
        return {**self.__dict__, "_oldest": deque()}

    def add(self, ledger: Path, size: int) -> None:
        """Count a new file, and evict the least recently used files until all fit. The caller holds the lock.

        Args:
            ledger: the file with the sum.
            size: the size of the new file in bytes.

        Raises:
            OSError: the folder or the ledger cannot be used.
        """
        try:
            taken = _read(ledger)
            # The sum is unknown: this is the first file, or a power failure lost it.
            taken = self._look() if taken is None else taken + size
            if taken > self._size:
                taken = self._remove(taken)
            if taken > self._size:
                # The files of the last scan are gone or in use again.
                taken = self._remove(self._look())
            ledger.write_text(f"{taken:0{DIGITS}}")
        except OSError:
            # Then the sum is not known either.
            with suppress(OSError):
                ledger.write_text("")
            raise

    def _remove(self, taken: int) -> int:
        """Evict the oldest known files as far as needed, and return the sum that is left."""
        while taken > self._size and self._oldest:
            seen = self._oldest.popleft()
            # Skip files that another process removed, that were used since the scan, or that belong to another user.
            with suppress(FileNotFoundError, PermissionError):
                if seen.path.stat().st_mtime_ns == seen.used:
                    seen.path.unlink()
                    taken -= seen.size
        return taken

    def _look(self) -> int:
        """Scan all files. Partial files of killed processes are evicted as they age."""
        found = []
        for path in self._folder.iterdir():
            if OURS.fullmatch(path.name):
                with suppress(FileNotFoundError):
                    stat = path.stat()
                    found.append(_Seen(stat.st_mtime_ns, stat.st_size, path))
        self._oldest = deque(sorted(found))
        return sum(seen.size for seen in found)


def _read(ledger: Path) -> int | None:
    """Return the sum; None if it is not known."""
    try:
        text = ledger.read_bytes()
    except FileNotFoundError:
        return None
    return int(text) if len(text) == DIGITS and text.isdigit() else None
