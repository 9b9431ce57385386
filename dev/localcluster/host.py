"""What the host must bring: root, and a few commands (installed by apt-get where that exists)."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

from dev.localcluster.command import run
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.say import say

if TYPE_CHECKING:
    from collections.abc import Mapping

# command -> Debian (and Ubuntu) package
CLUSTER_COMMANDS: Final = {
    "catatonit": "catatonit",
    "ip": "iproute2",
    "iptables": "iptables",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "runc": "runc",
    "unshare": "util-linux",
}
# For `policies` alone.
POLICY_COMMANDS: Final = {"ipset": "ipset"}
# Debian keeps some of these in folders that are not on every user's PATH.
ADMIN_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin"


def require_root() -> None:
    """Said at once, before anything is looked at or built.

    Raises:
        LocalClusterError: the user is not root.
    """
    if os.geteuid() != 0:
        raise LocalClusterError(
            "the local cluster needs root (it makes namespaces, a bridge and cgroups): run the command with sudo"
        )


def widen_path() -> None:
    """Adds the administrator's folders to this process's PATH."""
    os.environ["PATH"] = f"{os.environ.get('PATH', '/usr/bin:/bin')}:{ADMIN_PATH}"


def missing(commands: Mapping[str, str]) -> list[str]:
    """The packages of those commands that are not there."""
    return sorted({package for command, package in commands.items() if shutil.which(command) is None})


def require_commands(commands: Mapping[str, str] = CLUSTER_COMMANDS) -> None:
    """Installs the packages of missing commands.

    Args:
        commands: command to Debian package.

    Raises:
        LocalClusterError: there is no apt-get, or it could not bring them.
    """
    packages = missing(commands)
    if not packages:
        return
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise LocalClusterError(
            f"these packages are missing (by their Debian names): {names}; install them and try again"
        )
    say(f"installing Debian packages: {names} (once; about 1 min)")
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ("apt-get", "install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *packages)
    try:
        run("apt-get", "update", doing="apt-get update", env=quiet)
        run(*install, doing="apt-get install", env=quiet)
    except LocalClusterError as error:
        raise LocalClusterError(f"could not install {names}: {error}; install them and try again") from error
    if left := missing(commands):
        raise LocalClusterError(f"the packages {' '.join(left)} are installed but their commands are not on the PATH")
