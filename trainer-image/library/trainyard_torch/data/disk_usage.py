"""How many bytes a folder of blocks holds, known without looking at all of them each time, and which of them are to go.

The sum is in a file that all processes of the node share, under a lock that the caller holds. Files that it does not count (removed by hand,
or left by a killed process) are found by the next scan. A scan happens when space runs out and the oldest files of the last scan are gone.
seen the last time are gone.
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
    """A file as it was when the folder was looked at. The one that was used least recently is the least."""

    used: int
    size: int
    path: Path


class DiskUsage:
    """What lies in a folder. It may be given to other processes; each has its own memory of what it saw.

    Args:
        folder: only files with this cache's naming scheme count.
        size: bytes that may lie there.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size
        self._oldest: deque[_Seen] = deque()

    @override
    def __getstate__(self) -> dict[str, Any]:
        # What this process has seen is of no use to another one.
        return {**self.__dict__, "_oldest": deque()}

    def add(self, ledger: Path, size: int) -> None:
        """Count a new file, and evict the least recently used ones until all fit. The caller holds the lock.

        Args:
            ledger: the file with the sum.
            size: in bytes.

        Raises:
            OSError: the folder or the ledger cannot be used.
        """
        try:
            taken = _read(ledger)
            # Not known: the first of all, or what a power failure has left.
            taken = self._look() if taken is None else taken + size
            if taken > self._size:
                taken = self._remove(taken)
            if taken > self._size:
                # Those that were seen the last time are gone, or in use again.
                taken = self._remove(self._look())
            ledger.write_text(f"{taken:0{DIGITS}}")
        except OSError:
            # Then the sum is not known either.
            with suppress(OSError):
                ledger.write_text("")
            raise

    def _remove(self, taken: int) -> int:
        """What is left when the oldest that are known have gone, as far as needed."""
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
    """The sum, or None where it is not known."""
    try:
        text = ledger.read_bytes()
    except FileNotFoundError:
        return None
    return int(text) if len(text) == DIGITS and text.isdigit() else None
