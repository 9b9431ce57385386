"""The SLSA provenance of an image, version 1 of the predicate: from what, by whom and how it was built. Pure.

https://slsa.dev/spec/v1.0/provenance. What cannot be known is left out, not guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dev.release.source import Source

BUILD_TYPE = "https://trainyard.dev/release/v1"
"""Described in docs/release.md: `dev.localcluster.images` builds the Dockerfile with buildah."""
LOCAL_BUILDER = "https://trainyard.dev/release/local"


@dataclass(frozen=True, slots=True)
class Base:
    """What the Dockerfile's BASE_IMAGE stood for: a minimal Debian, made from Debian's mirrors in the same build."""

    reference: str
    layer: str
    """The digest of its one layer, `sha256:…`, which is the image's first."""


@dataclass(frozen=True, slots=True)
class Build:
    """One image's build."""

    image: str
    version: str
    dockerfile: str
    base: Base
    files: Mapping[str, str]
    """The SHA-256 of the files that pin what was fetched, by their paths in the repository."""
    finished: str
    """When, as the image's configuration has it; the image may have been built before it was released."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Where the build ran, and which run it was."""

    identity: str
    invocation: str = ""


def builder(environment: Mapping[str, str]) -> Builder:
    """Return the workflow run from GitHub's variables, else an unnamed machine without details."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return Builder(LOCAL_BUILDER)
    server = environment["GITHUB_SERVER_URL"]
    run = f"{environment['GITHUB_REPOSITORY']}/actions/runs/{environment['GITHUB_RUN_ID']}"
    return Builder(
        f"{server}/{environment['GITHUB_WORKFLOW_REF']}",
        f"{server}/{run}/attempts/{environment.get('GITHUB_RUN_ATTEMPT', '1')}",
    )


def predicate(build: Build, source: Source, by: Builder) -> dict[str, Any]:
    """The predicate; its subject, the image's digest, is added by the signer."""
    repository = f"git+{source.repository}" if source.repository else ""
    commit = {**_given("uri", repository), "digest": {"gitCommit": source.commit}}
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "source": commit,
                "image": build.image,
                "version": build.version,
                "dockerfile": build.dockerfile,
                "buildArgs": {"BASE_IMAGE": build.base.reference},
                **_given("modifiedFiles", list(source.modified)),
            },
            "resolvedDependencies": [
                {"name": "source", **commit},
                {"name": "base", "uri": build.base.reference, "digest": _digest(build.base.layer)},
                *({"name": name, "digest": {"sha256": value}} for name, value in sorted(build.files.items())),
            ],
        },
        "runDetails": {
            "builder": {"id": by.identity},
            "metadata": {**_given("invocationId", by.invocation), "finishedOn": build.finished},
        },
    }


def _given(name: str, value: object) -> dict[str, object]:
    return {name: value} if value else {}


def _digest(text: str) -> dict[str, str]:
    algorithm, _, value = text.partition(":")
    return {algorithm: value}
