"""The version of the program: from an environment variable, or from git. Runs git, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard_torch.export.record import Code

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMIT_VARIABLE = "TRAINYARD_COMMIT"
DIRTY = "-dirty"
GIT_TIMEOUT_SECONDS = 10.0
"""Seconds that git may take: on a network volume it may be slow."""


def version(environ: Mapping[str, str], folder: Path | None = None) -> Code:
    """The version of the program.

    Args:
        environ: TRAINYARD_COMMIT may hold the version, in the format of `git describe --always --dirty`: for images, which have no repository.
        folder: where the program lies; by default that of the main module, else the current one.
    """
    if given := environ.get(COMMIT_VARIABLE, "").strip():
        return Code(given.removesuffix(DIRTY), given.endswith(DIRTY))
    where = folder or _program()
    commit = _git(where, "rev-parse", "HEAD")
    if not commit:
        return Code()
    changed = _git(where, "status", "--porcelain", "--untracked-files=no")
    return Code(commit, None if changed is None else bool(changed))


def _program() -> Path:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(path).resolve().parent if path else Path.cwd()


def _git(folder: Path, *words: str) -> str | None:
    """Return git's output; None if there is no git, no repository, or no permission to read it."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
