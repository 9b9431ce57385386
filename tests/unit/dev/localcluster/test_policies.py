"""How the nodes enforce NetworkPolicies."""

from pathlib import Path

from dev.localcluster import host, policies, tools
from dev.localcluster.addresses import SERVICE_NETWORK
from dev.localcluster.paths import Paths


def test_kube_router_does_policies_alone(tmp_path: Path) -> None:
    program, *flags = policies.command(2, Path("/bin/kube-router"), Paths(tmp_path))
    assert program == "/bin/kube-router"
    told = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    off = {name for name, value in told.items() if value == "false"}
    assert (told["run-firewall"], off) == ("true", {"run-router", "run-service-proxy", "enable-cni"})
    assert (told["hostname-override"], told["service-cluster-ip-range"]) == ("node2", str(SERVICE_NETWORK))


def test_policies_also_apply_to_nodes_booted_later(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.state.mkdir()
    assert not policies.asked_for(paths)
    policies.ask_for(paths)
    policies.ask_for(paths)
    assert policies.asked_for(paths)


def test_default_cluster_needs_no_policy_tools() -> None:
    assert policies.PROGRAM not in tools.EVERYDAY
    assert not host.POLICY_COMMANDS.keys() & host.CLUSTER_COMMANDS.keys()
