from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from dev.localcluster import addresses, control_plane, host_changes, network, node_config, node_spec, node_view, scale
from dev.localcluster.kubeconfig import write_private
from dev.localcluster.node_spec import NodeSpec


def facts(*, disk: str = "/cache/cluster/node3", unified: bool = False) -> node_config.NodeFacts:
    return node_config.NodeFacts(
        number=3,
        disk=Path(disk),
        pki=Path("/pki"),
        proxy_kubeconfig=Path("/proxy.kubeconfig"),
        cni_programs=Path("/cni/bin"),
        runc=Path("/usr/sbin/runc"),
        unified_cgroups=unified,
    )


def test_addresses_of_a_node() -> None:
    assert addresses.node_address(3) == "10.78.0.13"
    assert addresses.pod_network(3) == "10.78.3.0/24"


def test_no_two_nodes_share_an_address() -> None:
    numbers = range(1, addresses.MOST_NODES + 1)
    assert len({addresses.node_address(number) for number in numbers} | {addresses.GATEWAY}) == len(numbers) + 1
    assert len({addresses.pod_network(number) for number in numbers} | {"10.78.0.0/24"}) == len(numbers) + 1
    assert all(len(addresses.veth_name(number)) <= 15 for number in numbers)  # what the kernel takes


def test_kubelet_accepts_cgroup_v1_only_on_v1_hosts() -> None:
    assert node_config.kubelet(facts())["failCgroupV1"] is False
    assert "failCgroupV1" not in node_config.kubelet(facts(unified=True))


def test_containerd_s_configuration_is_toml_whatever_the_path() -> None:
    disk = '/odd "path\\ with é'
    parsed = tomllib.loads(node_config.containerd(facts(disk=disk)))
    assert parsed["root"] == f"{disk}/containerd"
    runtime = parsed["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["restrict_oom_score_adj"] is True
    assert runtime["cni"]["bin_dirs"] == ["/cni/bin"]
    assert runtime["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == "/usr/sbin/runc"


def test_sockets_keep_short_paths() -> None:
    assert len(node_config.CONTAINERD_SOCKET) < 108 - len(".ttrpc")


def test_a_node_s_specification_survives_its_file(tmp_path: Path) -> None:
    spec = NodeSpec(
        name="node1",
        address="10.78.0.11",
        disk="/disk",
        logs="/logs",
        gateway_prefix=24,
        routes=(("10.78.2.0/24", "10.78.0.12"),),
        device_routes=("10.96.0.0/16",),
        folders=(("log", "/var/log"),),
        daemons=(("containerd", ("/bin/containerd", "--config=x")),),
        wait_for_socket="/run/x.sock",
    )
    spec.write(tmp_path / "node.json")
    assert node_spec.read(tmp_path / "node.json") == spec


@pytest.mark.parametrize(
    ("destination", "taken"),
    [
        ("default", False),
        ("10.0.0.0/8", False),  # wider: the cluster's routes are more exact and win
        ("10.78.0.0/16", True),
        ("10.78.9.0/24", True),
        ("10.78.9.1", True),
        ("10.79.0.0/16", False),
        ("192.168.0.0/24", False),
    ],
)
def test_routes_in_the_way(destination: str, taken: bool) -> None:  # noqa: FBT001 - a table's column
    assert network.overlaps(destination) is taken


@pytest.mark.parametrize(
    ("listing", "frames", "chains"),
    [
        ("-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n", True, []),
        ("-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n-N DOCKER\n-A FORWARD -j DOCKER\n", True, ["FORWARD"]),
        ("-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n", False, []),
        ("-P INPUT DROP\n-P FORWARD DROP\n-P OUTPUT DROP\n", True, ["INPUT", "FORWARD"]),
        ("-P INPUT DROP\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n", False, ["INPUT"]),
        ("", True, []),
    ],
)
def test_which_chains_must_let_the_cluster_through(listing: str, frames: bool, chains: list[str]) -> None:  # noqa: FBT001 - a column, too
    assert host_changes.needed_accepts(host_changes.parse_policies(listing), bridged_frames_pass=frames) == chains


def test_only_scale_profile_raises_client_limits() -> None:
    standard = control_plane.scheduler_configuration(Path("/k"), scale=False)["clientConnection"]
    raised = control_plane.scheduler_configuration(Path("/k"), scale=True)["clientConnection"]
    assert set(standard) == {"kubeconfig"}
    assert raised["qps"] >= 1000


def test_simulated_node_has_the_requested_gpus() -> None:
    assert scale.node(2, 1000)["status"]["allocatable"]["nvidia.com/gpu"] == "1000"
    assert "nvidia.com/gpu" not in scale.node(2, 0)["status"]["allocatable"]


def node(*, ready: str = "True", heartbeat: str = "2026-01-01T12:00:00Z", gpus: str = "8") -> dict[str, object]:
    return {
        "metadata": {"name": "node1"},
        "status": {
            "allocatable": {"cpu": "2", "nvidia.com/gpu": gpus},
            "conditions": [
                {"type": "DiskPressure", "status": "False"},
                {"type": "Ready", "status": ready, "lastHeartbeatTime": heartbeat},
            ],
        },
    }


@pytest.mark.parametrize(
    ("seen", "up"),
    [
        (node(), True),
        (node(ready="Unknown"), False),
        (node(ready="False"), False),
        (node(gpus="0"), False),
        (node(heartbeat="2026-01-01T11:59:58Z"), False),  # from before the boot
        ({"metadata": {"name": "node1"}}, False),
    ],
)
def test_when_a_node_is_up(seen: dict[str, object], up: bool) -> None:  # noqa: FBT001 - a column, too
    booted = node_view.parse(node(heartbeat="2026-01-01T11:59:59Z")).heartbeat
    assert node_view.parse(seen).is_up(8, booted) is up


def test_a_shortened_number_of_gpus() -> None:
    assert node_view.parse(node(gpus="1k")).gpus == 1000


def test_private_files_are_private_from_their_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("an older, public one")
    path.chmod(0o644)
    write_private(path, json.dumps({}))
    assert path.stat().st_mode & 0o777 == 0o600
