"""One real cluster. The tests run in this order, and the last one destroys it."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dev.localcluster import api, node_view, processes
from dev.localcluster.addresses import API_PORT, ETCD_PORT, GATEWAY
from dev.localcluster.node_config import PAUSE_IMAGE
from dev.localcluster.tools import ensure
from tests.host.machine import COMMAND, GPUS, NODES, PATHS, eventually, host_snapshot, localcluster, output, refusal, up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.5).close()
    print("open")
except ConnectionRefusedError:
    print("reached")
except OSError as error:
    print("out of reach")
"""


@contextmanager
def stranger() -> Iterator[tuple[str, ...]]:
    """Simulate another machine of the host's network that routes the cluster's addresses to this host."""
    words = ("ip", "netns", "exec", "ty-stranger")
    forward = Path("/proc/sys/net/ipv4/ip_forward")
    before = forward.read_text()
    output("ip", "netns", "add", "ty-stranger")
    try:
        output("ip", "link", "add", "ty-host", "type", "veth", "peer", "name", "eth0", "netns", "ty-stranger")
        output("ip", "address", "add", "198.51.100.1/24", "dev", "ty-host")
        output("ip", "link", "set", "ty-host", "up")
        output(*words, "ip", "address", "add", "198.51.100.2/24", "dev", "eth0")
        output(*words, "ip", "link", "set", "eth0", "up")
        output(*words, "ip", "route", "add", "default", "via", "198.51.100.1")
        forward.write_text("1")
        yield words
    finally:
        forward.write_text(before)
        output("ip", "link", "delete", "ty-host")
        output("ip", "netns", "delete", "ty-stranger")


def reach(address: str, port: int, *prefix: str) -> str:
    return output(*prefix, sys.executable, "-c", CONNECT, address, str(port)).strip()


@pytest.fixture(scope="module", autouse=True)
def cluster(pristine: dict[str, Any]) -> Iterator[None]:
    assert not pristine["state"]
    done = up()
    assert done.returncode == 0, done.stderr
    yield
    assert localcluster("down").returncode == 0


@pytest.fixture(scope="module")
def kubectl() -> Callable[..., str]:
    program = str(ensure("kubectl")["kubectl"])
    kubeconfig = localcluster("kubeconfig").stdout.strip()

    def run(*arguments: str, stdin: str = "") -> str:
        command = [program, f"--kubeconfig={kubeconfig}", f"--cache-dir={PATHS.state}/kubectl", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def view(name: str) -> node_view.NodeView:
    return node_view.nodes(api.Api(PATHS.pki))[name]


def test_pods_run_on_all_nodes(kubectl: Callable[..., str]) -> None:
    for number in range(1, NODES + 1):
        assert view(f"node{number}").is_up(GPUS, node_view.LONG_AGO)
        container = {
            "name": "wait",
            "image": PAUSE_IMAGE,
            "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "16Mi"}},
        }
        spec = {"nodeName": f"node{number}", "containers": [container], "terminationGracePeriodSeconds": 0}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod{number}"}, "spec": spec}
        kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=30s")


def test_second_up_keeps_the_cluster_or_refuses() -> None:
    again = up()
    assert again.returncode == 0
    assert "already running" in again.stdout
    assert "another shape is up" in refusal(localcluster("up", "--nodes", NODES + 1))


def test_another_cache_folder_cannot_touch_it(tmp_path: Path) -> None:
    assert str(PATHS.state) in refusal(up(tmp_path))
    assert str(PATHS.state) in refusal(localcluster("down", cache=tmp_path))


def test_pods_are_reached_from_inside_only(kubectl: Callable[..., str]) -> None:
    address = kubectl("get", "pod", "pod1", "-o", "jsonpath={.status.podIP}")
    node2 = (*COMMAND, "node", "exec", "2", "--")
    assert reach(address, 80, *node2) == "reached"
    assert reach("10.96.0.1", 443, *node2) == "open"
    assert reach("192.0.2.1", 80, *node2) == "out of reach"
    with stranger() as elsewhere:
        assert reach("198.51.100.1", 9, *elsewhere) == "reached"  # so it is not the test that is cut off
        assert reach(address, 80, *elsewhere) == "out of reach"
        assert reach(GATEWAY, API_PORT, *elsewhere) == "out of reach"


def test_no_process_listens_on_public_addresses() -> None:
    own = {f"pid={pid}," for pid in processes.marked(PATHS)}
    listening = [line.split() for line in output("ss", "-Hltunp").splitlines()]
    addresses = {words[4].rsplit(":", 1)[0] for words in listening if any(pid in words[-1] for pid in own)}
    assert addresses == {GATEWAY, "127.0.0.1"}


def test_etcd_requires_a_client_certificate() -> None:
    context = ssl.create_default_context(cafile=str(PATHS.pki / "etcd-ca.crt"))
    # A node's certificate is of another authority.
    context.load_cert_chain(PATHS.pki / "node1.crt", PATHS.pki / "node1.key")
    # With TLS 1.3 the refusal comes after the handshake, before or after the request has left.
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _ask(ETCD_PORT, context)


def _ask(port: int, context: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), 2) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(b"GET /version HTTP/1.0\r\n\r\n")
        return secured.recv(1)


def test_gpu_assignments_survive_a_kubelet_restart(kubectl: Callable[..., str]) -> None:
    before = kubectl("get", "pod", "pod1", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
    now = view("node1").heartbeat
    killed = localcluster("node", "exec", 1, "--", "sh", "-c", "kill -9 $(cat /run/daemons/kubelet)")
    assert killed.returncode == 0, killed.stderr
    eventually(lambda: view("node1").is_up(GPUS, now))
    after = kubectl("get", "pod", "pod1", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
    assert after == before


def test_unhealthy_gpu_is_not_allocatable() -> None:
    mark = "mkdir -p /run/fakegpu/unhealthy && touch /run/fakegpu/unhealthy/gpu3"
    assert localcluster("node", "exec", 1, "--", "sh", "-c", mark).returncode == 0
    eventually(lambda: view("node1").gpus == GPUS - 1)
    assert localcluster("node", "exec", 1, "--", "rm", "/run/fakegpu/unhealthy/gpu3").returncode == 0
    eventually(lambda: view("node1").gpus == GPUS)


def test_stopped_node_boots_again() -> None:
    assert localcluster("node", "stop", 2).returncode == 0
    assert not list(Path("/sys/fs/cgroup").glob("**/trainyard-node2"))
    assert "is not running" in refusal(localcluster("node", "exec", 2, "true"))
    eventually(lambda: not view("node2").ready)
    assert view("node1").ready
    started = localcluster("node", "start", 2)
    assert started.returncode == 0, started.stderr
    assert view("node2").is_up(GPUS, node_view.LONG_AGO)
    assert f"there is no node {NODES + 1}" in refusal(localcluster("node", "stop", NODES + 1))


def test_load_accepts_only_image_archives(tmp_path: Path) -> None:
    archive = tmp_path / "again.tar"
    archive.write_bytes((PATHS.images / "pause.tar").read_bytes())
    assert localcluster("load", archive).returncode == 0
    assert "there is no image archive" in refusal(localcluster("load", tmp_path / "none.tar"))
    archive.write_text("no archive")
    assert "is not an OCI archive" in localcluster("load", archive).stderr


def test_down_after_a_crash_leaves_nothing(pristine: dict[str, Any]) -> None:
    for name in ("etcd", "kube-apiserver", "coredns"):
        pid = processes.alive(PATHS, name)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    for record in PATHS.pids.iterdir():
        record.unlink()
    assert localcluster("down").returncode == 0
    assert host_snapshot() == pristine
