from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dev.localcluster import cli, host, shape as shapes
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.paths import Paths
from dev.localcluster.shape import Profile, Shape

if TYPE_CHECKING:
    from pathlib import Path


def last_words(capsys: pytest.CaptureFixture[str]) -> str:
    [sentence] = capsys.readouterr().err.splitlines()
    return sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nodes", "0"], "--nodes is 0, but profile standard takes 1 to 200"),
        (["--nodes", "-1"], "--nodes is -1, but profile standard takes 1 to 200"),
        (["--nodes", "201"], "--nodes is 201, but profile standard takes 1 to 200"),
        (["--nodes", "5001", "--profile", "scale"], "--nodes is 5001, but profile scale takes 1 to 5000"),
        (["--gpus-per-node", "-1"], "--gpus-per-node is -1, but 0 to 1000 are possible"),
        (["--gpus-per-node", "1001"], "--gpus-per-node is 1001, but 0 to 1000 are possible"),
    ],
)
def test_bad_numbers(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", *arguments]) == 1
    assert last_words(capsys) == f"localcluster: {sentence}"


@pytest.mark.parametrize(
    "arguments", [[], ["upp"], ["up", "--nodes", "x"], ["up", "--profile", "huge"], ["node", "kick", "1"]]
)
def test_bad_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "arguments", [["up"], ["down"], ["status"], ["check"], ["node", "stop", "1"], ["load", "x.tar"], ["policies"]]
)
def test_root_is_asked_for_at_once(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cli.main(arguments) == 1
    assert "needs root" in last_words(capsys)


def test_without_apt_the_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LocalClusterError, match=r"these packages are missing \(by their Debian names\): a b;"):
        host.require_commands({"no-such-1": "b", "no-such-2": "a", "no-such-3": "a"})


def test_a_shape_survives_its_file(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.state.mkdir()
    assert shapes.read(paths) is None
    shape = Shape(20, 1000, Profile.SCALE)
    shapes.write(shape, paths)
    assert shapes.read(paths) == shape
    (paths.state / "shape.json").write_text('{"nodes": 3}')
    assert shapes.read(paths) is None
