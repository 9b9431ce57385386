"""What audit logs say of the operator's rights."""

import json
from pathlib import Path
from typing import Any

import pytest

from dev.localcluster.tools import ensure
from tests.support import rights
from tests.support.control_plane import OPERATOR
from tests.unit.helm.chart import Chart


def line(user: str = OPERATOR, code: int = 200, message: str = "", **about: Any) -> str:
    entry: dict[str, Any] = {"user": {"username": user}, "verb": about.pop("verb", "get"), "objectRef": about}
    return json.dumps({**entry, "responseStatus": {"code": code, "message": message}})


def test_what_is_counted() -> None:
    pods: dict[str, Any] = {"resource": "pods", "apiVersion": "v1"}
    status: dict[str, Any] = {
        "verb": "update",
        "apiGroup": "trainyard.dev",
        "resource": "trainingjobs",
        "subresource": "status",
    }
    owning = 'pods "x" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can\'t'
    lines = [
        line(**pods),
        line(**pods),
        line(**pods, code=404),
        line(**pods, code=403),  # a right that was lacking is none that was used
        line(**pods, user="system:serviceaccount:lab:default"),
        line(**status, code=409),
        line(**pods, verb="create", code=403, message=owning),
        json.dumps({"user": {"username": OPERATOR}, "verb": "get", "requestURI": "/version"}),
    ]
    assert rights.used(lines) == {
        ("", "pods", "get"): 3,
        ("trainyard.dev", "trainingjobs/status", "update"): 1,
        ("trainyard.dev", "trainingjobs/finalizers", "update"): 1,
    }


def test_a_right_that_was_never_used_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rights.main([str(tmp_path)]) == 1
    everything = [*rights.granted(Chart(ensure("helm")["helm"]).render(rights.EVERYTHING))]
    (tmp_path / "one.json").write_text(json.dumps([[*right, 2] for right in everything]))
    (tmp_path / "two.json").write_text(json.dumps([[*everything[0], 3]]))
    assert rights.main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"rights of the operator: {len(everything)}, of which 0 were not used" in said
    assert "       5 " in said
    (tmp_path / "one.json").write_text(json.dumps([[*right, 2] for right in everything[1:]]))
    (tmp_path / "two.json").unlink()
    assert rights.main([str(tmp_path)]) == 1


def test_it_is_kept_where_somebody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "audit.log"
    log.write_text(line(resource="pods") + "\n")
    monkeypatch.delenv(rights.FOLDER, raising=False)
    rights.keep(log)
    monkeypatch.setenv(rights.FOLDER, str(tmp_path / "kept"))
    rights.keep(log)
    rights.keep(tmp_path / "missing.log")
    (kept,) = (tmp_path / "kept").iterdir()
    assert json.loads(kept.read_text()) == [["", "pods", "get", 1]]
