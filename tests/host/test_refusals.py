"""Commands that cannot succeed fail with one clear sentence, and leave nothing."""

from __future__ import annotations

import fcntl
import socket
from typing import TYPE_CHECKING, Any

from dev.localcluster import lock
from dev.localcluster.addresses import API_PORT, ETCD_PORT, GATEWAY
from tests.host.machine import COMMAND, REPOSITORY, host_snapshot, localcluster, output, refusal, up

if TYPE_CHECKING:
    from pathlib import Path


def test_up_requires_root() -> None:
    prefix = ("unshare", "--user", "--map-user=1000")
    assert "needs root" in refusal(localcluster("up", prefix=prefix))


def test_commands_require_a_cluster() -> None:
    assert "no local cluster is running" in refusal(localcluster("kubeconfig"))
    assert "no local cluster is running" in refusal(localcluster("node", "stop", 1))
    assert localcluster("status").returncode == 1


def test_invalid_number_is_rejected() -> None:
    assert "--nodes is 0" in refusal(localcluster("up", "--nodes", 0))


def test_concurrent_command_is_rejected() -> None:
    with lock.LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another localcluster command is at work" in refusal(up())


def test_busy_port_is_reported(pristine: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", ETCD_PORT)):
        assert f"tcp port {ETCD_PORT} of 127.0.0.1 cannot be used" in refusal(up())
    with socket.create_server(("0.0.0.0", API_PORT)):  # noqa: S104 - the point of the test
        sentence = up().stderr
    assert f"tcp port {API_PORT} of {GATEWAY} cannot be used" in sentence
    assert host_snapshot() == pristine


def test_used_addresses_are_reported() -> None:
    output("ip", "link", "add", "ty-test", "type", "bridge")
    try:
        output("ip", "address", "add", "10.78.9.1/24", "dev", "ty-test")
        output("ip", "link", "set", "ty-test", "up")
        assert "10.78.9.0/24 belong to ty-test" in refusal(up())
    finally:
        output("ip", "link", "delete", "ty-test")


def test_full_disk_is_reported(tmp_path: Path) -> None:
    script = f"mount -t tmpfs -o size=20m tmpfs {tmp_path} && exec {' '.join(COMMAND)} build"
    done = localcluster(prefix=("unshare", "--mount", "sh", "-c", script), cache=tmp_path)
    assert "needs 6 GB" in refusal(done)


def test_missing_overlay_is_reported(tmp_path: Path) -> None:
    # An overlay cannot lie on an overlay: what a cache folder inside a container's own file system would be.
    folders = " ".join(f"{tmp_path}/{name}" for name in ("lower", "upper", "work", "merged"))
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    script = (
        f"mkdir {folders} && mount -t overlay -o {options} try {tmp_path}/merged && cd {REPOSITORY} && "
        f"mkdir {tmp_path}/merged/trainyard && exec {' '.join(COMMAND)} check"
    )
    done = localcluster(prefix=("unshare", "--mount", "sh", "-c", script), cache=tmp_path / "merged")
    assert "this kernel lacks overlay file systems" in refusal(done)
