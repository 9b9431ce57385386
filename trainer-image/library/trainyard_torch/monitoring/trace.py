"""Traces as files. A name that can be seen is that of a whole trace; whatever goes wrong, no part of one is left behind."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def name(rank: int, step: int) -> str:
    """That of the trace of a rank, which begins after this step."""
    return f"trace-rank{rank}-step{step}.json.gz"


def save(export: Callable[[str], object], path: Path) -> None:
    """Write a trace.

    Args:
        export: writes it as JSON to a path.
        path: where it is to be, compressed. Its folder is made.

    Raises:
        OSError: it could not be written, or not all of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder, since torch writes into other files beside the one that it is told.
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        plain, packed = Path(folder) / "plain.json", Path(folder) / "packed.gz"
        export(str(plain))
        # torch writes in C++, and says nothing when the disk is full.
        if not _whole(plain):
            raise OSError(f"{path.parent} does not take {path.name}: is there no room left?")
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        packed.replace(path)


def sweep(folder: Path, rank: int) -> None:
    """Take away what this rank was writing when it was killed."""
    for left in folder.glob(f".trace-rank{rank}-step*"):
        shutil.rmtree(left, ignore_errors=True)


def _whole(path: Path) -> bool:
    """Whether the JSON in it was written to its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16))
            return file.read().rstrip().endswith(b"}")
    except FileNotFoundError:
        return False
