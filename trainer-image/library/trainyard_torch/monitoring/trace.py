"""Trace files. They appear atomically; partial files are removed. A process of its own reads them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard_torch.monitoring import communication as shares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainyard_torch.monitoring.communication import Communication

READ_SECONDS = 300.0
"""The longest time for reading a trace: a million events take five to twenty seconds of a core."""


def name(rank: int, step: int) -> str:
    """Return the file name of a rank's trace that starts after this step."""
    return f"trace-rank{rank}-step{step}.json.gz"


@contextmanager
def exported(export: Callable[[str], object], path: Path) -> Iterator[Path]:
    """Write a trace as JSON into a temporary folder beside `path`, and return its path. The folder is removed at the end.

    Args:
        export: writes it to a path.
        path: where the trace will be. Its folder is created.

    Raises:
        OSError: the trace could not be written completely.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder, since torch writes further files beside the given one.
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        plain = Path(folder) / "plain.json"
        export(str(plain))
        # torch writes in C++, and does not report a full disk.
        if not _whole(plain):
            raise OSError(f"{path.name} is incomplete: is there space left in {path.parent}?")
        yield plain


def pack(plain: Path, path: Path) -> None:
    """Write a compressed copy of an exported trace to `path`, atomically.

    Raises:
        OSError: it could not be written.
    """
    packed = plain.with_name("packed.gz")
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    packed.replace(path)


def communication(plain: Path) -> Communication | None:
    """Return the shares of communication in an exported trace. A process of its own reads it.

    Raises:
        OSError, ValueError, SubprocessError: they could not be computed.
    """
    # Isolated from the training: neither its modules nor what observes its programs (sitecustomize) is imported.
    command = [sys.executable, "-I", str(shares.__file__), str(plain)]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=READ_SECONDS, check=True)
    found = json.loads(answer.stdout)
    return shares.Communication(**found) if found else None


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
