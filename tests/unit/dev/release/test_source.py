"""A release is of a commit, of one version, and of nothing that is not committed."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from dev.release import source
from dev.release.commands import ReleaseError
from dev.release.source import Source, public_address, require_committed, require_version, version_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    def git(*words: str) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "helm/trainyard").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "helm/trainyard/Chart.yaml").write_text("version: 1.2.3\nappVersion: 1.2.3\n")
    git("init", "--quiet")
    git("remote", "add", "origin", "https://ada:secret@git.example.com/example/trainyard.git")
    git("add", ".")
    git("commit", "--quiet", "--message", "All")
    git("tag", "v1.2.3")
    return tmp_path


def test_a_clean_commit(repository: Path) -> None:
    found = source.look(repository)
    assert len(found.commit) == 40
    assert (found.repository, found.tags, found.modified) == (
        "https://git.example.com/example/trainyard",
        ("v1.2.3",),
        (),
    )
    require_committed(found, allowed=False)


def test_a_tree_that_differs_from_its_commit(repository: Path) -> None:
    (repository / "pyproject.toml").write_text('[project]\nversion = "1.2.4"\n')
    (repository / "new.py").touch()
    found = source.look(repository)
    with pytest.raises(ReleaseError, match=r"differs from its commit \(pyproject\.toml, new\.py\): commit or stash"):
        require_committed(found, allowed=False)
    require_committed(found, allowed=True)


def test_many_files_are_not_all_named() -> None:
    with pytest.raises(ReleaseError, match=r"\(a, b, c …\)"):
        require_committed(Source("c", "", (), ("a", "b", "c", "d")), allowed=False)


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="asking git failed"):
        source.look(tmp_path)


def test_the_version_is_the_one_of_all_files(repository: Path) -> None:
    assert version_of(repository) == "1.2.3"
    assert version_of() == version_of(source.ROOT)


@pytest.mark.parametrize("field", ["version", "appVersion"])
def test_a_chart_of_another_version(repository: Path, field: str) -> None:
    chart = repository / "helm/trainyard/Chart.yaml"
    chart.write_text(chart.read_text().replace(f"{field}: 1.2.3", f"{field}: 1.2.2", 1))
    if field == "appVersion":
        chart.write_text("version: 1.2.3\nappVersion: 1.2.2\n")
    with pytest.raises(ReleaseError, match=rf"Chart\.yaml has the {field} 1\.2\.2 and pyproject\.toml 1\.2\.3"):
        version_of(repository)


@pytest.mark.parametrize("version", ["1.2", "1.2.3+local", "v1.2.3"])
def test_a_version_that_no_image_can_have(repository: Path, version: str) -> None:
    (repository / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (repository / "helm/trainyard/Chart.yaml").write_text(f'version: "{version}"\nappVersion: "{version}"\n')
    with pytest.raises(ReleaseError, match="is not of the form"):
        version_of(repository)


@pytest.mark.parametrize(
    ("asked", "tags", "sentence"),
    [
        ("1.2.4", ("v1.2.3",), r"--version says 1\.2\.4 and the files say 1\.2\.3"),
        (None, ("v1.2.2",), r"the commit has the tag v1\.2\.2 and the files say 1\.2\.3"),
        (None, (), r"the commit has no tag v1\.2\.3: `git tag v1\.2\.3`"),
        (None, ("nightly",), r"the commit has no tag v1\.2\.3"),
    ],
)
def test_a_release_of_another_version(asked: str | None, tags: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ReleaseError, match=sentence):
        require_version("1.2.3", asked=asked, tags=tags, must_be_tagged=True)


def test_tag_is_required_only_for_publishing() -> None:
    require_version("1.2.3", asked="1.2.3", tags=("v1.2.2", "v1.2.3"), must_be_tagged=True)
    require_version("1.2.3", asked=None, tags=(), must_be_tagged=False)
    with pytest.raises(ReleaseError, match="has the tag"):
        require_version("1.2.3", asked=None, tags=("v9.9.9",), must_be_tagged=False)


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/example/trainyard.git", "https://github.com/example/trainyard"),
        ("https://ada:token@github.com/example/trainyard", "https://github.com/example/trainyard"),
        ("git@github.com:example/trainyard.git", "https://github.com/example/trainyard"),
        ("ssh://git@github.com:22/example/trainyard.git", "https://github.com/example/trainyard"),
        ("/home/ada/trainyard", ""),
        ("file:///home/ada/trainyard", ""),
        ("", ""),
    ],
)
def test_the_address_of_the_repository(remote: str, address: str) -> None:
    assert public_address(remote) == address
