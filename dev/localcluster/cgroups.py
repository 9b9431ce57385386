"""The control group under which one node's pods live, on hosts with cgroup version 1, hybrid or 2.

A dead node leaves its groups behind, as no real machine does; a kubelet that finds them waits seconds for each.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path("/sys/fs/cgroup")
NEEDED: Final = ("cpu", "cpuset", "memory", "pids")
OPTIONAL: Final = ("io", "hugetlb")
REMOVAL_SECONDS: Final = 10.0


def group_name(number: int) -> str:
    """The node's group, directly below each hierarchy's root."""
    return f"trainyard-node{number}"


def is_unified(root: Path = ROOT) -> bool:
    """Version 2 only. On a hybrid host version 2 is mounted below, without controllers."""
    return (root / "cgroup.controllers").exists()


def hierarchies(root: Path = ROOT) -> list[Path]:
    """Where a group must be made."""
    if is_unified(root):
        return [root]
    # `cpu` and `cpuacct` may be links to one hierarchy; `unified` has no controllers and needs no group.
    return sorted({path.resolve() for path in root.iterdir() if path.is_dir() and path.name != "unified"})


def require_controllers(root: Path = ROOT) -> None:
    """Are the controllers there that the kubelet refuses to start without?

    Raises:
        LocalClusterError: one is not.
    """
    there = (root / "cgroup.controllers").read_text().split() if is_unified(root) else [p.name for p in root.iterdir()]
    wanted = NEEDED if is_unified(root) else (*NEEDED, "cpuacct")
    if absent := [name for name in wanted if name not in there]:
        raise LocalClusterError(
            f"the kernel offers no cgroup controller {', '.join(absent)} in {root}: "
            "enable it on the kernel's command line, or mount the cgroup file systems"
        )


def create(number: int, root: Path = ROOT) -> None:
    """Makes the node's group with all controllers.

    Raises:
        LocalClusterError: the kernel refuses.
    """
    if is_unified(root):
        _enable_controllers(root)
    for hierarchy in hierarchies(root):
        group = hierarchy / group_name(number)
        group.mkdir(exist_ok=True)
        if not is_unified(root):
            _inherit_cpuset(hierarchy, group)


def remove(number: int, root: Path = ROOT) -> None:
    """Removes the node's groups in every hierarchy, once the kernel has buried their processes.

    Raises:
        LocalClusterError: one stays busy.
    """
    for group in groups(root, group_name(number)):
        _remove_tree(group)


def remove_all(root: Path = ROOT) -> None:
    """Removes the groups of every node there ever was."""
    for group in groups(root, group_name(0).replace("0", "[0-9]*")):
        _remove_tree(group)


def groups(root: Path, pattern: str) -> Iterator[Path]:
    """The groups of this name below every hierarchy, `unified` included: runc makes some there too."""
    yield from root.glob(pattern)
    if not is_unified(root):
        yield from root.glob(f"*/{pattern}")


def _enable_controllers(root: Path) -> None:
    """A group has only the controllers which its parent hands down. They stay on: others may have come to use them."""
    offered = (root / "cgroup.controllers").read_text().split()
    handed_down = (root / "cgroup.subtree_control").read_text().split()
    wanted = [name for name in (*NEEDED, *OPTIONAL) if name in offered and name not in handed_down]
    if not wanted:
        return
    try:
        (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
    except OSError as error:
        raise LocalClusterError(
            f"cannot enable the cgroup controllers {', '.join(wanted)} in {root} ({error.strerror}): "
            "run on the host itself or in a container with a writable cgroup tree of its own"
        ) from error


def _inherit_cpuset(hierarchy: Path, group: Path) -> None:
    """In version 1 a new cpuset is empty, and no process can enter it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (hierarchy / name).exists():
            (group / name).write_text((hierarchy / name).read_text())


def _remove_tree(group: Path) -> None:
    deadline = time.monotonic() + REMOVAL_SECONDS
    while True:
        try:
            for folder, _, _ in os.walk(group, topdown=False):
                Path(folder).rmdir()
        except FileNotFoundError:
            return  # hierarchies that are linked together show the same group twice
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise LocalClusterError(f"cannot remove the control group {group}: {error.strerror}") from error
        else:
            return
        time.sleep(0.05)
