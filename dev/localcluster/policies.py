"""kube-router's network policy controller on each node, so that NetworkPolicies are heeded.

It runs inside the node, as the kubelet does, and ends with it. What it writes, rules of iptables and ipsets, lies in the node's network
namespace. Its routes, its Services and its CNI plugin are left off: the local cluster has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dev.localcluster import node, processes, tools as go_tools
from dev.localcluster.addresses import SERVICE_NETWORK, node_name
from dev.localcluster.api import wait_until
from dev.localcluster.command import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dev.localcluster.paths import Paths

PROGRAM: Final = "kube-router"
READY_SECONDS: Final = 60.0
CHAIN: Final = "KUBE-ROUTER-FORWARD"
LAST_OF_A_SYNC: Final = "0x20000"
"""A mark of which the chain speaks once kube-router has written all rules for the first time."""
# Frames between two pods of a node go through iptables by this alone. A new namespace inherits the setting of the kernel.
SEE_BRIDGED_FRAMES: Final = "echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"


def ask_for(paths: Paths) -> None:
    """Notes that nodes which boot from now on are to heed policies too."""
    _note(paths).touch()


def asked_for(paths: Paths) -> bool:
    """Are nodes of this cluster to heed policies?"""
    return _note(paths).exists()


def start(paths: Paths, numbers: Sequence[int]) -> None:
    """Starts it on those of these nodes where it does not run yet, and waits until each heeds the policies there are.

    Raises:
        LocalClusterError: it cannot be built, or it does not come to that.
    """
    program = go_tools.ensure(PROGRAM, paths=paths)[PROGRAM]
    for number in numbers:
        if processes.alive(paths, daemon(number)) is None:
            run(*node.enter(number, paths), "sh", "-c", SEE_BRIDGED_FRAMES, doing="filtering bridged frames")
            processes.start(paths, daemon(number), (*node.enter(number, paths), *command(number, program, paths)))

    def ready() -> bool:
        return all(_has_written(number, paths) for number in numbers)

    def obstacle() -> str:
        ended = [daemon(number) for number in numbers if processes.alive(paths, daemon(number)) is None]
        return f"{', '.join(ended)} has ended" if ended else ""

    failure = f"not all nodes enforce NetworkPolicies: see {paths.logs}/*.{PROGRAM}.log"
    wait_until(ready, seconds=READY_SECONDS, failure=failure, obstacle=obstacle)


def daemon(number: int) -> str:
    """The name under which a node's process is known, and its log."""
    return f"{node_name(number)}.{PROGRAM}"


def command(number: int, program: Path, paths: Paths) -> list[str]:
    """What runs on a node."""
    return [
        str(program),
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--enable-cni=false",
        f"--kubeconfig={paths.kubeconfig}",
        f"--hostname-override={node_name(number)}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--health-port=0",
        "--v=1",
    ]


def _has_written(number: int, paths: Paths) -> bool:
    rules = run(*node.enter(number, paths), "iptables", "-S", doing="reading a node's firewall")
    return any(CHAIN in rule and LAST_OF_A_SYNC in rule for rule in rules.splitlines())


def _note(paths: Paths) -> Path:
    return paths.state / "policies"
