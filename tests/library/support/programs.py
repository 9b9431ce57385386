"""Programs for a test, each process started by its own command, as a launcher does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def started(program: Path, world_size: int, *words: str, **more: str) -> Iterator[list[subprocess.Popen[str]]]:
    """All processes of a training, which are gone afterwards; `words`: arguments, `more`: further variables."""
    port = str(free_port())
    made = [
        subprocess.Popen(
            [sys.executable, str(program), *words],
            env={
                **os.environ,
                **({"RANK": str(rank), "WORLD_SIZE": str(world_size)} if world_size > 1 else {}),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(world_size),
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": "lo",
                **more,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        yield made
    finally:
        for each in made:
            each.kill()
            each.communicate()


def free_port() -> int:
    """A port of this machine on which no process listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
