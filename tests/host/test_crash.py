"""`up` is killed before it finishes."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from dev.localcluster import network, processes
from dev.localcluster.addresses import BRIDGE
from tests.host.machine import COMMAND, PATHS, REPOSITORY, eventually, host_snapshot, localcluster


@pytest.mark.parametrize("begun", ["etcd", "node1"])
def test_down_removes_a_half_started_cluster(begun: str, pristine: dict[str, Any]) -> None:
    with subprocess.Popen([*COMMAND, "up"], cwd=REPOSITORY, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: processes.alive(PATHS, begun) is not None)
        process.kill()
    assert network.owner() == str(PATHS.state), f"{BRIDGE} should have been left"
    assert localcluster("down").returncode == 0
    assert host_snapshot() == pristine
