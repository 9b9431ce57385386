"""The scale profile, without kubelets."""

from __future__ import annotations

from typing import Any

from dev.localcluster import api, node_view
from tests.host.machine import PATHS, host_snapshot, localcluster, refusal


def test_scale_profile_creates_many_nodes(pristine: dict[str, Any]) -> None:
    done = localcluster("up", "--profile", "scale", "--nodes", 5, "--gpus-per-node", 1000)
    assert done.returncode == 0, done.stderr
    try:
        views = node_view.nodes(api.Api(PATHS.pki))
        assert {name: (view.ready, view.gpus) for name, view in views.items()} == {
            f"node{number}": (True, 1000) for number in range(1, 6)
        }
        assert "have no power to cut" in refusal(localcluster("node", "stop", 1))
    finally:
        localcluster("down")
    assert host_snapshot() == pristine
