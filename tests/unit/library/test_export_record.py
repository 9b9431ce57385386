"""What the record of an export says, and that one that was changed is not believed."""

import argparse
import dataclasses
import json
import math
import subprocess
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import trainyard_torch
from trainyard_torch.checkpoint.manifest import File, Manifest, digest
from trainyard_torch.export.code_version import version
from trainyard_torch.export.record import Code, ExportError, Input, Provenance, Record, configured, jsonable

RECORD = Record(
    model="Net",
    parameters=12,
    weights="ab" * 32,
    tied={"head.weight": "embedding.weight"},
    inputs=(Input("x", "float32", (2, 3), {"0": "batch"}),),
    code=Code("c0ffee", dirty=True),
    configuration={"lr": 0.1, "optimizer": {"name": "adam"}},
    data={"source": "s3://bucket/images", "cursor": 640},
    environment={"torch": "2.6.0", "job": {"name": "digits", "uid": "u-1", "attempt": 2}},
    metrics={"loss": 0.25, "grad_norm": None},
    checkpoint={"folder": "/checkpoints", "name": "step-000000000640-000002", "step": 640, "attempt": 2},
    time=1.5,
    files={"model.safetensors": File(48, "cd" * 32)},
)


def changed(text: str, **values: Any) -> str:
    content = {**json.loads(text), **values}
    content.pop("sha256")
    return json.dumps({**content, "sha256": digest(content)})


def test_it_comes_back() -> None:
    back = Record.parse(RECORD.text())
    assert back.text() == RECORD.text()
    assert back.files == RECORD.files
    assert back.code == RECORD.code
    assert back.inputs[0].dynamic == {"0": "batch"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not valid JSON of this library"),
        ("[1]", "it is not valid JSON of this library"),
        (RECORD.text().replace("0.25", "0.20"), "was changed after it was written"),
        (changed(RECORD.text(), format=9), "has format 9, and this release reads 1"),
        (changed(RECORD.text(), colour="red"), "lacks a field, or has one that is not known: .*colour"),
        (changed(RECORD.text(), files={"a": {"size": 1}}), "lacks a field, or has one that is not known: .*sha256"),
    ],
)
def test_invalid_records_are_rejected(text: str, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        Record.parse(text)


def test_same_export_needs_equal_weights_and_all_files() -> None:
    back, only = Record.parse(RECORD.text()), {"model.safetensors"}
    assert back.fits(RECORD, only)
    assert back.fits(dataclasses.replace(RECORD, inputs=()), only), "no program is asked for"
    assert not back.fits(RECORD, only | {"model.onnx"})
    assert not back.fits(dataclasses.replace(RECORD, weights="00" * 32), only)
    assert not back.fits(dataclasses.replace(RECORD, inputs=(Input("x", "float32", (9, 3)),)), only)


@dataclasses.dataclass
class Settings:
    rate: float
    path: PurePosixPath


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        (None, {"arguments": ["--lr", "0.1"]}),
        ({"a": {"b": (1, 2)}, 3: {"x", "y"}}, {"a": {"b": [1, 2]}, "3": ["x", "y"]}),
        (argparse.Namespace(lr=0.1, resume=None), {"lr": 0.1, "resume": None}),
        (Settings(math.inf, PurePosixPath("/data")), {"rate": "inf", "path": "/data"}),
        ({"seed": np.int64(7), "rate": np.float32(0.5), "kind": int}, {"seed": 7, "rate": 0.5, "kind": str(int)}),
    ],
)
def test_configurations(configuration: Any, message: Any) -> None:
    assert configured(configuration, ["--lr", "0.1"]) == message


def test_a_configuration_that_is_none() -> None:
    with pytest.raises(ValueError, match="configuration must be a mapping, a Namespace or a dataclass, got a int"):
        configured(7, [])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
)


@given(VALUES)
def test_what_json_has_stays_as_it_is(value: Any) -> None:
    once = jsonable(value)
    assert json.loads(json.dumps(once, allow_nan=False)) == once
    assert jsonable(once) == once


def test_where_a_model_comes_from() -> None:
    about = Provenance(checkpoint=Manifest(step=7, attempt=3, world_size=2), checkpoints="/checkpoints")
    assert about.origin() == {
        "folder": "/checkpoints", "name": "step-000000000007-000003", "step": 7, "attempt": 3
    }  # fmt: skip
    assert Provenance().origin() == {}


@pytest.mark.parametrize(
    ("tag", "code"), [("c0ffee", Code("c0ffee", dirty=False)), ("c0ffee-dirty", Code("c0ffee", dirty=True))]
)
def test_the_version_from_an_image(tag: str, code: Code, tmp_path: Path) -> None:
    assert version({"TRAINYARD_COMMIT": tag}, tmp_path) == code


def test_the_version_from_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert version({}, tmp_path) == Code(), "no repository"

    def git(*words: str) -> str:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *settings, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "train.py").write_text("one\n")
    git("add", "train.py")
    git("commit", "--quiet", "-m", "one")
    (tmp_path / "notes").write_text("belongs to no commit\n")
    assert version({}, tmp_path) == Code(git("rev-parse", "HEAD"), dirty=False)
    (tmp_path / "train.py").write_text("two\n")
    assert version({}, tmp_path).dirty
    monkeypatch.setenv("PATH", str(tmp_path))
    assert version({}, tmp_path) == Code(), "no git"


def test_the_library_says_the_version_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert trainyard_torch.__version__ == project["project"]["version"]
