"""Read how much memory the container may still use, by cgroup v2 or v1. Independent of torch.

Files on a file system in memory count against the limit of the container. If they exceed it, the kernel kills a process: they get no error
"no space left".
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

UNLIMITED = 1 << 60
"""cgroup v1 has a number for "no limit" that depends on the page size; none is smaller."""
RESERVE = 32
"""This part of the limit stays free for what the training itself allocates."""
PAGE_CACHE = ("active_file", "inactive_file")
"""Memory that the kernel reclaims on demand. Files on a file system in memory are not in it."""
CGROUPS, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class HostMemory(NamedTuple):
    """The memory of the container, in bytes."""

    limit: int
    free: int
    """What is below the limit, the page cache included."""

    @property
    def usable(self) -> int:
        """What may be used for files, so that the training has a reserve."""
        return max(0, self.free - self.limit // RESERVE)


def host_memory(cgroups: Path = CGROUPS, root: Path = ROOT) -> HostMemory | None:
    """Return the memory of this container; None where there is no limit, or the kernel does not provide it.

    Args:
        cgroups: the file with the cgroups of this process.
        root: where cgroups are mounted.
    """
    try:
        lines = [line.split(":", 2) for line in cgroups.read_text().splitlines()]
    except OSError:
        return None
    paths = {name: path.lstrip("/") for _, names, path in lines for name in names.split(",")}
    if "memory" in paths:
        folder = _folder(root / "memory", paths["memory"], "memory.limit_in_bytes")
        limit, used, prefix = folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes", "total_"
    else:
        folder = _folder(root, paths.get("", ""), "memory.max")
        limit, used, prefix = folder / "memory.max", folder / "memory.current", ""
    most, now = _number(limit), _number(used)
    if most is None or now is None or most >= UNLIMITED:
        return None
    fields = _fields(folder / "memory.stat")
    return HostMemory(most, max(0, most - now + sum(fields.get(f"{prefix}{name}", 0) for name in PAGE_CACHE)))


def _folder(root: Path, path: str, file: str) -> Path:
    """Return the container's own folder. Inside a container the path may be the host's, and the mount the container's."""
    return root / path if (root / path / file).exists() else root


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max" is not a number
        return None


def _fields(file: Path) -> dict[str, int]:
    try:
        return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
    except (OSError, ValueError):
        return {}
