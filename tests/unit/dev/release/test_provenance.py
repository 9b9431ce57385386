"""What the provenance says, and what it keeps to itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dev.release import provenance
from dev.release.images import to_the_second
from dev.release.provenance import Base, Build, Builder, predicate
from dev.release.source import Source

SOURCE = Source("c0ffee", "https://github.com/example/trainyard", ("v1.2.3",), ())
BUILD = Build(
    image="operator",
    version="1.2.3",
    dockerfile="Dockerfile",
    base=Base("localhost/trainyard/base:trixie-1", "sha256:ba5e"),
    files={"uv.lock": "10c4", "Dockerfile": "d0c4"},
    finished="2026-11-24T12:00:00Z",
)
ACTIONS = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "example/trainyard",
    "GITHUB_WORKFLOW_REF": "example/trainyard/.github/workflows/release.yml@refs/tags/v1.2.3",
    "GITHUB_RUN_ID": "42",
    "GITHUB_RUN_ATTEMPT": "2",
}


def test_it_names_commit_dockerfile_and_what_was_fetched() -> None:
    definition = predicate(BUILD, SOURCE, Builder("me"))["buildDefinition"]
    commit = {"uri": "git+https://github.com/example/trainyard", "digest": {"gitCommit": "c0ffee"}}
    assert definition["externalParameters"] == {
        "source": commit,
        "image": "operator",
        "version": "1.2.3",
        "dockerfile": "Dockerfile",
        "buildArgs": {"BASE_IMAGE": "localhost/trainyard/base:trixie-1"},
    }
    assert definition["resolvedDependencies"] == [
        {"name": "source", **commit},
        {"name": "base", "uri": "localhost/trainyard/base:trixie-1", "digest": {"sha256": "ba5e"}},
        {"name": "Dockerfile", "digest": {"sha256": "d0c4"}},
        {"name": "uv.lock", "digest": {"sha256": "10c4"}},
    ]


def test_provenance_names_the_workflow_run() -> None:
    details = predicate(BUILD, SOURCE, provenance.builder(ACTIONS))["runDetails"]
    assert details["builder"] == {
        "id": "https://github.com/example/trainyard/.github/workflows/release.yml@refs/tags/v1.2.3"
    }
    assert details["metadata"] == {
        "invocationId": "https://github.com/example/trainyard/actions/runs/42/attempts/2",
        "finishedOn": "2026-11-24T12:00:00Z",
    }


def test_provenance_reveals_nothing_about_local_machines() -> None:
    by = provenance.builder({"HOSTNAME": "kitchen", "USER": "lovelace", "HOME": "/home/lovelace"})
    assert by == Builder(provenance.LOCAL_BUILDER)
    statement = json.dumps(predicate(BUILD, SOURCE, by))
    assert not [word for word in ("kitchen", "lovelace", "invocationId") if word in statement]


def test_timestamps_have_whole_seconds() -> None:
    assert to_the_second("2026-11-24T16:16:40.123456780Z") == "2026-11-24T16:16:40Z"
    assert to_the_second("2026-11-24T16:16:40Z") == "2026-11-24T16:16:40Z"


def test_files_that_differ_from_the_commit_are_named() -> None:
    dirty = replace(SOURCE, modified=("README.md",))
    assert predicate(BUILD, dirty, Builder("me"))["buildDefinition"]["externalParameters"]["modifiedFiles"] == [
        "README.md"
    ]


def test_repository_without_url_is_identified_by_commit() -> None:
    local = replace(SOURCE, repository="")
    source = predicate(BUILD, local, Builder("me"))["buildDefinition"]["externalParameters"]["source"]
    assert source == {"digest": {"gitCommit": "c0ffee"}}


@pytest.mark.parametrize("field", ["buildType", "externalParameters", "resolvedDependencies"])
def test_it_has_what_the_specification_asks_for(field: str) -> None:
    statement = predicate(BUILD, SOURCE, Builder("me"))
    assert statement["buildDefinition"][field]
    assert statement["runDetails"]["builder"]["id"]
