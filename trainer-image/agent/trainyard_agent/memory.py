"""Read what the kernel counts about the container's memory, by cgroup v2 or v1. Never writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Optional

UNLIMITED = 1 << 60
"""cgroup v1 has a number for "no limit" that depends on the page size; none is smaller."""
LOOK_SECONDS = 1.0


class Memory(NamedTuple):
    """The counts; None where the kernel does not provide one."""

    oom_kills: int | None
    """Processes of this container that were killed because memory ran out."""
    peak: int | None
    """The highest use, in bytes."""
    limit: int | None
    """The limit in bytes; None where there is none."""


def read(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> Memory:
    """Return the counts as of now."""
    paths = _paths(proc)
    if paths is None:
        return Memory(None, None, None)
    if paths.version_1 is not None:
        folder = _folder(root / "memory", paths.version_1, "memory.oom_control")
        return Memory(
            _field(folder / "memory.oom_control", "oom_kill"),
            _number(folder / "memory.max_usage_in_bytes"),
            _limit(_number(folder / "memory.limit_in_bytes")),
        )
    folder = _folder(root, paths.version_2, "memory.events")
    return Memory(
        _field(folder / "memory.events", "oom_kill"),
        _number(folder / "memory.peak"),
        _limit(_number(folder / "memory.max")),
    )


def free(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that may still be used, the page cache included; None where there is no limit."""
    limit, paths = read(proc, root).limit, _paths(proc)
    if limit is None or paths is None:
        return None
    if paths.version_1 is not None:
        folder, prefix = _folder(root / "memory", paths.version_1, "memory.stat"), "total_"
        used = _number(folder / "memory.usage_in_bytes")
    else:
        folder, prefix = _folder(root, paths.version_2, "memory.stat"), ""
        used = _number(folder / "memory.current")
    if used is None:
        return None
    cached = sum(_field(folder / "memory.stat", f"{prefix}{name}") or 0 for name in ("active_file", "inactive_file"))
    return limit - used + cached


class Kills:
    """Counts the processes that were killed because memory ran out since this was made, and when the last one was."""

    def __init__(self, count: Callable[[], Memory] = read, clock: Callable[[], float] = time.monotonic) -> None:
        self._count, self._clock = count, clock
        self.before = count()
        """The counts at the start."""
        self._seen, self._looked = self.before.oom_kills, clock()
        self._at: float | None = None

    def look(self) -> None:
        """Read the counts again, once a second at most. To be called regularly."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._note(self._count(), now)

    def now(self) -> tuple[Memory, float]:
        """Return the counts as of now, and the seconds since the last kill."""
        counts, now = self._count(), self._clock()
        self._note(counts, now)
        return counts, 0.0 if self._at is None else now - self._at

    def _note(self, counts: Memory, now: float) -> None:
        if counts.oom_kills != self._seen:
            self._seen, self._at = counts.oom_kills, now


class _Paths(NamedTuple):
    version_1: Optional[str]  # noqa: UP045 - Python 3.9
    """The path in the memory controller's own hierarchy; None where it is in the unified one."""
    version_2: str


def _paths(proc: Path) -> _Paths | None:
    """Return the cgroups of this process, or None where the kernel does not provide them."""
    try:
        lines = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except OSError:
        return None
    paths = {controllers: path.lstrip("/") for _, controllers, path in lines}
    memory_path = next((path for controllers, path in paths.items() if "memory" in controllers.split(",")), None)
    return _Paths(memory_path, paths.get("", ""))


def _folder(root: Path, path: str, file: str) -> Path:
    """Return the container's own folder. Inside a container the path may be the host's, and the mount the container's."""
    return root / path if (root / path / file).exists() else root


def _field(file: Path, name: str) -> int | None:
    try:
        fields = dict(line.split() for line in file.read_text().splitlines())
        return int(fields[name])
    except (OSError, ValueError, KeyError):
        return None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max" is not a number
        return None


def _limit(number: int | None) -> int | None:
    return None if number is None or number >= UNLIMITED else number
