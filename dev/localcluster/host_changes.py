"""What a cluster changes on the host outside its own namespaces, written down first, so that teardown can undo it.

A node's mounts, interfaces, routes and firewall rules need none of this: they vanish with its namespaces.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster.addresses import BRIDGE, CLUSTER_NETWORK
from dev.localcluster.command import run

if TYPE_CHECKING:
    from dev.localcluster.paths import Paths

TABLE: Final = "trainyard_localcluster"
# A machine that can send packets to this host could otherwise ask it to pass them on to pods, or reach the API server by the
# bridge's address through another interface.
GUARD: Final = f"""\
table inet {TABLE} {{
  chain forward {{
    type filter hook forward priority -10; policy accept;
    iifname "{BRIDGE}" oifname != "{BRIDGE}" drop
    oifname "{BRIDGE}" iifname != "{BRIDGE}" drop
  }}
  chain input {{
    type filter hook input priority -10; policy accept;
    iifname != {{ "lo", "{BRIDGE}" }} ip daddr {CLUSTER_NETWORK} drop
  }}
}}
"""
ACCEPT: Final = {
    "INPUT": ("INPUT", "-i", BRIDGE, "-j", "ACCEPT"),
    "FORWARD": ("FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT"),
}
BRIDGED_FRAMES_PASS_IPTABLES: Final = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
# A node mounts its own folders over these; they must exist in the host's tree, which every node sees.
MOUNT_POINTS: Final = (Path("/var/lib/kubelet"), Path("/var/lib/cni"))
# The kubelet sets these for the whole machine.
KUBELET_SYSCTLS: Final = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
SYSCTL: Final = Path("/proc/sys")


def needed_accepts(policies: dict[str, str], *, bridged_frames_pass: bool) -> list[str]:
    """The chains that would drop the cluster's own packets, as a firewall or Docker sets them up.

    Args:
        policies: chain to its policy.
        bridged_frames_pass: whether frames from node to node go through the host's FORWARD chain.
    """
    drops = [chain for chain, policy in policies.items() if policy != "ACCEPT"]
    return [chain for chain in drops if chain == "INPUT" or (chain == "FORWARD" and bridged_frames_pass)]


def parse_policies(listing: str) -> dict[str, str]:
    """The chains' policies out of `iptables -S`."""
    words = [line.split() for line in listing.splitlines()]
    return {line[1]: line[2] for line in words if line[:1] == ["-P"]}


def make(paths: Paths) -> None:
    """Writes down and makes the changes."""
    policies = parse_policies(run("iptables", "-S", doing="reading the firewall"))
    frames = BRIDGED_FRAMES_PASS_IPTABLES
    chains = needed_accepts(policies, bridged_frames_pass=frames.exists() and frames.read_text().strip() == "1")
    record = {
        "folders": [str(folder) for folder in MOUNT_POINTS if not folder.exists()],
        "sysctls": {name: (SYSCTL / name).read_text().strip() for name in KUBELET_SYSCTLS if (SYSCTL / name).exists()},
    }
    _record(paths).write_text(json.dumps(record))
    for folder in MOUNT_POINTS:
        folder.mkdir(parents=True, exist_ok=True)
    for chain in chains:
        run("iptables", "-I", *ACCEPT[chain], doing="letting the cluster through the firewall")
    run("nft", "-f", "-", text=GUARD, doing="guarding the cluster's network")


def undo(paths: Paths) -> None:
    """Undoes what was written down, and what is recognisably ours. What is gone already is fine."""
    if TABLE in run("nft", "list", "tables", doing="reading the firewall"):
        run("nft", "delete", "table", "inet", TABLE, doing="removing the cluster's firewall table")
    rules = run("iptables", "-S", doing="reading the firewall").splitlines()
    for rule in ACCEPT.values():
        for _ in range(rules.count(" ".join(("-A", *rule)))):
            run("iptables", "-D", *rule, doing="removing a firewall rule")
    try:
        record = json.loads(_record(paths).read_text())
    except (FileNotFoundError, ValueError):
        return
    for name, value in record["sysctls"].items():
        if (SYSCTL / name).read_text().strip() != value:
            (SYSCTL / name).write_text(value)
    for folder in record["folders"]:
        with contextlib.suppress(OSError):  # gone, or somebody else's by now
            Path(folder).rmdir()
    _record(paths).unlink()


def _record(paths: Paths) -> Path:
    return paths.state / "host-changes.json"
