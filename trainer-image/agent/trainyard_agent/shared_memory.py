"""Remove what killed ranks leave in /dev/shm. It counts as memory of the pod, and stays when processes and containers restart.

NCCL, torch and Python's multiprocessing remove their files when they end, but not when they are killed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder itself, and known names in it
PREFIXES = ("nccl-", "torch_", "psm_")
"""Of files that no process looks for after the one that made them has exited. Checkpoints in memory have other names."""
HOST_NAMESPACE = "ipc:[4026531839]"
"""The first IPC namespace of a kernel (PROC_IPC_INIT_INO). There, /dev/shm is the node's, and files may be another pod's."""
NAMESPACE = Path("/proc/self/ns/ipc")


def remove_leftovers(folder: Path = SHARED_MEMORY, namespace: Path = NAMESPACE) -> int:
    """Remove files of these names that belong to this user and that no process has open. Returns how many.

    To be called while no rank runs. Containers of the pod that share the folder keep what they have open, whether or not their processes are
    visible here: the name of a file goes, and not its content.
    """
    try:
        if str(namespace.readlink()) == HOST_NAMESPACE:
            return 0
        names = {name for name in os.listdir(folder) if name.startswith(PREFIXES)}  # noqa: PTH208 - names alone
    except OSError:
        return 0
    unused = names - _open_names(folder) if names else set()
    return sum(_remove(folder / name) for name in unused)


def _remove(file: Path) -> bool:
    with suppress(OSError):
        found = file.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            file.unlink()
            return True
    return False


def _open_names(folder: Path) -> set[str]:
    """Return the names of the files of this folder that a visible process has opened or mapped."""
    found: set[str] = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            found.update(path.name for path in _files(process) if path.parent == folder)
    return found


def _files(process: Path) -> Iterable[Path]:
    # It may have exited, or be another user's.
    with suppress(OSError):
        for line in (process / "maps").read_text(errors="replace").splitlines():
            yield Path(line.partition("/")[1] + line.partition("/")[2])
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                yield descriptor.readlink()
