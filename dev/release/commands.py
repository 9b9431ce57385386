"""Starting other programs, and the one exception that people see. Decides nothing."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path


class ReleaseError(Exception):
    """Its text is the one sentence that is printed: what is wrong, where, and what to do."""


def run(
    *command: str | Path, doing: str, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> str:
    """The program's output.

    Args:
        command: the program and its arguments.
        doing: what the sentence on a failure begins with.
        environment: variables in addition to this process's own.
        folder: where it runs.

    Raises:
        ReleaseError: the program is missing, or it failed; the message contains its last lines of output.
    """
    try:
        done = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env={**os.environ, **(environment or {})},
            cwd=folder,
        )
    except FileNotFoundError as error:
        raise ReleaseError(f"{doing} failed: the command {command[0]} is missing") from error
    if done.returncode:
        raise ReleaseError(f"{doing} failed: {last_lines(done.stderr) or f'exit code {done.returncode}'}")
    return done.stdout


def last_lines(output: str) -> str:
    """The last line that calls itself an error, else the last; without what programs put before it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    last = (errors or lines or [""])[-1]
    if message := re.search(r'level=\w+ msg="(.*)"$', last):
        last = message[1].replace('\\"', '"')
    return re.sub(r"^(error during command execution|error): ", "", last, flags=re.IGNORECASE)
