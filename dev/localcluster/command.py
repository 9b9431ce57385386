"""Runs one short command of the host to its end."""

from __future__ import annotations

import subprocess
import tempfile
from typing import TYPE_CHECKING

from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import IO


def run(
    *argv: str | Path,
    doing: str,
    env: Mapping[str, str] | None = None,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    text: str | None = None,
) -> str:
    """The command's output. A failure says what was being done, and the command's own last words.

    Raises:
        LocalClusterError: the command is missing or failed.
    """
    with tempfile.TemporaryFile() as fed:
        if text is not None:
            fed.write(text.encode())
            fed.seek(0)
        try:
            done = subprocess.run(
                [str(word) for word in argv],
                stdin=fed if text is not None else stdin,
                env=env,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except FileNotFoundError as error:
            raise LocalClusterError(f"{doing} failed: the command {argv[0]} is missing") from error
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise LocalClusterError(f"{doing} failed: {words[-1]}")
    return done.stdout
