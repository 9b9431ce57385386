"""Tries what the nodes will need of the kernel, in throw-away namespaces, so that a lack is named and not guessed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a shell script can try."""

    name: str
    script: str
    cure: str


NETWORK_FEATURES: Final = (
    Feature("network bridges", "ip link add try0 type bridge", "load the kernel module `bridge`"),
    Feature("veth pairs", "ip link add try1 type veth peer name try2", "load the kernel module `veth`"),
    Feature(
        "nftables with NAT",
        "nft add table ip try && nft 'add chain ip try nat { type nat hook prerouting priority 0 ; }'",
        "load the kernel modules `nf_tables` and `nft_chain_nat`",
    ),
    Feature("iptables", "iptables -t nat -L -n", "load the kernel modules `ip_tables` or `nft_compat`"),
)
OVERLAY: Final = Feature(
    "overlay file systems",
    "mkdir lower upper work merged && mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work try merged",
    "load the kernel module `overlay`, or let XDG_CACHE_HOME name a folder on ext4, xfs or btrfs "
    "(an overlay cannot lie on another overlay or on NFS)",
)
POLICY_FEATURES: Final = (
    Feature(
        "sets of addresses in iptables",
        "ipset create try hash:ip && iptables -A FORWARD -m set --match-set try src -m physdev --physdev-is-bridged -j DROP",
        "load the kernel modules `ip_set_hash_ip`, `xt_set` and `xt_physdev`",
    ),
    # Else frames between two pods of a node pass by its rules.
    Feature(
        "iptables for bridged frames",
        "echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables",
        "load the kernel module `br_netfilter`",
    ),
)


def require_features(scratch: Path, features: Sequence[Feature] = (*NETWORK_FEATURES, OVERLAY)) -> None:
    """Tries each in namespaces of its own, which vanish with the shell.

    Args:
        scratch: an empty folder on the disk of the nodes.
        features: which.

    Raises:
        LocalClusterError: one is missing.
    """
    require_namespaces()
    for feature in features:
        tried = subprocess.run(
            ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", feature.script],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode:
            words = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise LocalClusterError(f"this kernel lacks {feature.name} ({words}): {feature.cure}")


def require_namespaces() -> None:
    """The kernel, and a container around us if there is one, must let root make namespaces.

    Raises:
        LocalClusterError: it does not.
    """
    kinds = {"mount": "--mount", "process": "--pid --fork", "network": "--net", "host name": "--uts", "IPC": "--ipc"}
    for kind, flags in kinds.items():
        tried = subprocess.run(["unshare", *flags.split(), "true"], capture_output=True, check=False)
        if tried.returncode:
            raise LocalClusterError(
                f"this kernel does not let root make a {kind} namespace (unshare {flags}): "
                "run on a machine or virtual machine of its own, not in an unprivileged container"
            )
