"""What is released: the commit, its tag, and the one version that all files agree on. Reads the repository, writes nothing."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import yaml

from dev.release.commands import ReleaseError, run

ROOT = Path(__file__).parents[2]
VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
"""Semantic, and without build metadata, since a `+` cannot stand in an image's tag."""


@dataclass(frozen=True, slots=True)
class Source:
    """A commit of the repository, as the provenance names it."""

    commit: str
    repository: str
    """The address that it can be cloned from; empty where the clone has no remote of a known name."""
    tags: tuple[str, ...]
    modified: tuple[str, ...]
    """Files that differ from the commit."""


def look(root: Path = ROOT) -> Source:
    """The source as it lies there.

    Raises:
        ReleaseError: it is no git repository.
    """

    def git(*words: str) -> list[str]:
        # sudo runs this as root, in a folder of somebody else's.
        safe = ("git", "-c", f"safe.directory={root}", *words)
        return run(*safe, doing="asking git", folder=root).splitlines()

    [commit] = git("rev-parse", "HEAD")
    [origin] = git("config", "--default", "", "--get", "remote.origin.url") or [""]
    return Source(
        commit=commit,
        repository=public_address(origin),
        tags=tuple(git("tag", "--points-at", "HEAD")),
        modified=tuple(line[3:] for line in git("status", "--porcelain")),
    )


def public_address(remote: str) -> str:
    """Return a remote's address without private parts: user names, passwords, and folders of this machine."""
    if found := re.fullmatch(r"(?:https?|ssh|git)://(?:[^@/]*@)?([^:/]+)(?::\d+)?/(.+?)(?:\.git)?/?", remote):
        return f"https://{found[1]}/{found[2]}"
    if found := re.fullmatch(r"[^@/]+@([^:/]+):(.+?)(?:\.git)?/?", remote):
        return f"https://{found[1]}/{found[2]}"
    return ""


def require_committed(source: Source, *, allowed: bool) -> None:
    """Provenance that names a commit is a lie where files differ from it.

    Raises:
        ReleaseError: some do, and that is not `allowed`.
    """
    if source.modified and not allowed:
        some = ", ".join(source.modified[:3]) + (" …" if len(source.modified) > 3 else "")
        raise ReleaseError(
            f"the working tree differs from its commit ({some}): commit or stash the changes, "
            "or try it out with --local --dirty"
        )


def version_of(root: Path = ROOT) -> str:
    """The version that `pyproject.toml` and the chart's `version` and `appVersion` agree on.

    Raises:
        ReleaseError: they do not, or it is none.
    """
    version = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    chart = yaml.safe_load((root / "helm/trainyard/Chart.yaml").read_text())
    for field in ("version", "appVersion"):
        if str(chart[field]) != version:
            raise ReleaseError(
                f"helm/trainyard/Chart.yaml has the {field} {chart[field]} and pyproject.toml {version}: make them the same"
            )
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"the version {version} in pyproject.toml is not of the form 1.2.3 or 1.2.3-rc.1")
    return version


def require_version(version: str, *, asked: str | None, tags: tuple[str, ...], must_be_tagged: bool) -> None:
    """The version is the one that was asked for, and the one of the commit's tag.

    Raises:
        ReleaseError: it is not.
    """
    if asked and asked != version:
        raise ReleaseError(f"--version says {asked} and the files say {version}: change pyproject.toml and Chart.yaml")
    others = [tag for tag in tags if tag.startswith("v")]
    if f"v{version}" in others:
        return
    if others:
        raise ReleaseError(
            f"the commit has the tag {others[0]} and the files say {version}: change pyproject.toml and Chart.yaml, or the tag"
        )
    if must_be_tagged:
        raise ReleaseError(f"the commit has no tag v{version}: `git tag v{version}`, or try it out with --local")
