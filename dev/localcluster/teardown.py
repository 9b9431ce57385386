"""Removes every trace of a cluster from the host, whatever state it is in. Its logs and the image seed stay."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from dev.localcluster import cgroups, host_changes, network, processes, volumes
from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dev.localcluster.paths import Paths


def require_ownership(paths: Paths) -> None:
    """Bridge, cgroups and firewall table exist once on a machine; another cache folder's cluster is not ours to touch.

    Raises:
        LocalClusterError: there is such a cluster.
    """
    owner = network.owner()
    if owner and owner != str(paths.state):
        raise LocalClusterError(
            f"the local cluster of this machine has its state in {owner}: "
            "bring that one down first, with XDG_CACHE_HOME set as it was at its `up`"
        )


def has_leftovers(paths: Paths) -> bool:
    """Is there anything to clear?"""
    return paths.state.exists() or network.owner() is not None or bool(processes.marked(paths))


def clear(paths: Paths) -> None:
    """Each step is tried, even if one before it failed.

    Raises:
        LocalClusterError: something could not be removed.
    """
    problems = []
    steps: tuple[Callable[[], None], ...] = (
        lambda: processes.kill_all(paths),  # the mounts, rules and interfaces of the nodes die with these
        cgroups.remove_all,
        network.delete_all,
        lambda: host_changes.undo(paths),
        lambda: volumes.remove_link(paths),
    )
    for step in steps:
        try:
            step()
        except (LocalClusterError, OSError) as error:
            problems.append(str(error))
    if problems:  # the state stays, so that the next `down` knows what there is to undo
        raise LocalClusterError(f"the cluster could not be removed completely: {'; '.join(problems)}")
    shutil.rmtree(paths.state, ignore_errors=True)
