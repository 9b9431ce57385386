"""Trace files. They appear atomically; partial files are removed."""

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
    """Return the file name of a rank's trace that starts after this step."""
    return f"trace-rank{rank}-step{step}.json.gz"


def save(export: Callable[[str], object], path: Path) -> None:
    """Write a trace atomically.

    Args:
        export: writes it as JSON to a path.
        path: the path of the compressed trace. Its folder is created.

    Raises:
        OSError: the trace could not be written completely.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder, since torch writes further files beside the given one.
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        plain, packed = Path(folder) / "plain.json", Path(folder) / "packed.gz"
        export(str(plain))
        # torch writes in C++, and does not report a full disk.
        if not _whole(plain):
            raise OSError(f"{path.name} is incomplete: is there space left in {path.parent}?")
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        packed.replace(path)


def sweep(folder: Path, rank: int) -> None:
    """Remove partial files that a killed process of this rank has left."""
    for left in folder.glob(f".trace-rank{rank}-step*"):
        shutil.rmtree(left, ignore_errors=True)


def _whole(path: Path) -> bool:
    """Return whether the JSON in the file is complete."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16))
            return file.read().rstrip().endswith(b"}")
    except FileNotFoundError:
        return False
