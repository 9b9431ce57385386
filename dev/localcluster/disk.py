"""Is there room on the disk? Asked before a long work, not found out in the middle of it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from pathlib import Path


def require_free(folder: Path, *, gigabytes: float, purpose: str) -> None:
    """Checks the file system of a folder that need not exist yet.

    Raises:
        LocalClusterError: there is too little room.
    """
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 1e9
    if free < gigabytes:
        raise LocalClusterError(
            f"{purpose} needs {gigabytes:g} GB and the disk of {folder} has {free:.1f} GB free: "
            "free some, or let XDG_CACHE_HOME name a folder on a larger disk"
        )
