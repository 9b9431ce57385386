"""Runs `go` on a folder that has a go.mod: builds, and downloads of modules. Assumes nothing about the module cache."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT: Mapping[str, str] = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}


def run_go(go: Path, folder: Path, *words: str, doing: str) -> str:
    """Return the output of one `go` command in `folder`.

    Raises:
        LocalClusterError: the command failed.
    """
    done = _run(go, folder, *words)
    if done.returncode:
        raise LocalClusterError(f"{doing} failed: {_last_lines(done)}")
    return done.stdout


def download(go: Path, folder: Path, module: str) -> Path:
    """Return the folder with the sources of a Go module, at the version that `folder`'s go.mod requires.

    The module cache may be empty: the module is downloaded if it is missing.

    Raises:
        LocalClusterError: the module cannot be downloaded, or its folder does not exist afterwards.
    """
    done = _run(go, folder, "mod", "download", "-json", module)
    try:
        answer: dict[str, Any] = json.loads(done.stdout or "{}")
    except ValueError:
        answer = {}
    sources = answer.get("Dir", "")
    if done.returncode or not sources:
        raise LocalClusterError(
            f"downloading the Go module {module} failed: {answer.get('Error') or _last_lines(done)}"
        )
    if not Path(sources).is_dir():
        raise LocalClusterError(
            f"the Go module {module} was downloaded, but its folder {sources} does not exist: "
            "run `go clean -modcache` and try again"
        )
    return Path(sources)


def _run(go: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [go, *words],
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _last_lines(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if not line.startswith("go: downloading")]
    return " ".join(lines[-3:]) or f"exit code {done.returncode}"
