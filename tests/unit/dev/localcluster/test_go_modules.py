"""Downloads of Go modules into a module cache that is empty."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dev.localcluster import go_modules, go_toolchain, tools
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.paths import Paths, from_environment
from tests.support import prefetch, third_party_crds

if TYPE_CHECKING:
    from pathlib import Path

SMALL = "github.com/pkg/errors"
SUMS = """\
github.com/pkg/errors v0.9.1 h1:FEBLx1zS214owpjy7qsBeixbURkuhQAwrK5UwLGTwt4=
github.com/pkg/errors v0.9.1/go.mod h1:bwawxfHBFNV+L2hUp1rHADufV3IMtnDRdf1r5NINEl0=
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of which nothing is built, as in `tests/support/crds`; the module cache is empty."""
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "empty-cache"))
    source = tmp_path / "modules" / "small"
    source.mkdir(parents=True)
    (source / "go.mod").write_text(f"module example.org/small\n\ngo 1.26.0\n\nrequire {SMALL} v0.9.1 // indirect\n")
    (source / "go.sum").write_text(SUMS)
    return source


def module_of(folder: Path, file: str) -> tools.Module:
    return tools.Module(folder.name, {}, "1 s", root=folder.parent, files=((SMALL, file),))


def stub_go(tmp_path: Path, answer: str, exit_code: int = 0) -> Path:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\ncat <<'ANSWER'\n{answer}\nANSWER\nexit {exit_code}\n")
    go.chmod(0o755)
    return go


def test_a_file_comes_from_an_empty_module_cache(folder: Path, tmp_path: Path) -> None:
    programs = tools.ensure_module(module_of(folder, "errors.go"), Paths(tmp_path / "cache"))
    assert "package errors" in (programs / "errors.go").read_text()


def test_a_file_that_the_module_lacks_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match=f"the Go module {SMALL} has no file missing.go"):
        tools.ensure_module(module_of(folder, "missing.go"), Paths(tmp_path / "cache"))


def test_a_module_that_is_not_required_is_named(folder: Path) -> None:
    go = go_toolchain.find(from_environment())
    with pytest.raises(LocalClusterError, match=r"downloading the Go module example.org/absent failed"):
        go_modules.download(go, folder, "example.org/absent")


@pytest.mark.parametrize("answer", ["", json.dumps({"Path": SMALL, "Dir": ""}), "not JSON"])
def test_an_answer_without_a_folder_is_an_error(tmp_path: Path, answer: str) -> None:
    with pytest.raises(LocalClusterError, match=f"downloading the Go module {SMALL} failed"):
        go_modules.download(stub_go(tmp_path, answer), tmp_path, SMALL)


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    answer = json.dumps({"Path": SMALL, "Dir": str(tmp_path / "gone")})
    with pytest.raises(LocalClusterError, match=f"the Go module {SMALL} was downloaded, but its folder .*gone"):
        go_modules.download(stub_go(tmp_path, answer), tmp_path, SMALL)


def test_prefetch_names_each_unavailable_module(folder: Path, tmp_path: Path) -> None:
    good = module_of(folder, "errors.go")
    bad = tools.Module(folder.name, {"absent": "example.org/absent"}, "1 s", root=folder.parent)
    [sentence] = prefetch.errors((good, bad), Paths(tmp_path / "cache"))
    assert sentence.startswith("downloading the Go modules of small failed: ")
    assert "example.org/absent" in sentence


def test_the_prefetch_covers_all_but_the_long_tests() -> None:
    assert third_party_crds.MODULE in prefetch.MODULES
    left_out = {
        program for module in tools.MODULE_LIST if module not in prefetch.MODULES for program in module.packages
    }
    assert left_out == {*tools.RELEASE, *tools.POLICIES, *tools.GANGS, "adapter"}
