"""The permissions that the operator used, by the audit logs."""

import json
from pathlib import Path
from typing import Any

import pytest

from dev.localcluster.tools import ensure
from tests.support import permission_audit
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
    assert permission_audit.used(lines) == {
        ("", "pods", "get"): 3,
        ("trainyard.dev", "trainingjobs/status", "update"): 1,
        ("trainyard.dev", "trainingjobs/finalizers", "update"): 1,
    }


def test_unused_permission_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert permission_audit.main([str(tmp_path)]) == 1
    everything = [*permission_audit.granted(Chart(ensure("helm")["helm"]).render(permission_audit.EVERYTHING))]
    (tmp_path / "one.json").write_text(json.dumps([[*permission, 2] for permission in everything]))
    (tmp_path / "two.json").write_text(json.dumps([[*everything[0], 3]]))
    assert permission_audit.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"permissions of the operator: {len(everything)}, not used: 0" in printed
    assert "       5 " in printed
    (tmp_path / "one.json").write_text(json.dumps([[*permission, 2] for permission in everything[1:]]))
    (tmp_path / "two.json").unlink()
    assert permission_audit.main([str(tmp_path)]) == 1


def test_counts_are_written_where_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "audit.log"
    log.write_text(line(resource="pods") + "\n")
    monkeypatch.delenv(permission_audit.FOLDER, raising=False)
    permission_audit.record(log)
    monkeypatch.setenv(permission_audit.FOLDER, str(tmp_path / "kept"))
    permission_audit.record(log)
    permission_audit.record(tmp_path / "missing.log")
    (kept,) = (tmp_path / "kept").iterdir()
    assert json.loads(kept.read_text()) == [["", "pods", "get", 1]]
