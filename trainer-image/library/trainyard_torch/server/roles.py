"""The role of each process, the parameters of each server, and when a gradient may be applied. Pure, without torch."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of each process: the last `servers` ranks serve, so trainers have ranks from 0 on.

    Attributes:
        world_size: the number of processes.
        servers: the number of servers, at least 1. At least one process must train.

    Raises:
        ValueError: there is no server, or no trainer.
    """

    world_size: int
    servers: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.servers < self.world_size:
            raise ValueError(
                f"servers must be from 1 to {self.world_size - 1}, as there are {self.world_size} processes and one has to train, got {self.servers}"
            )

    @property
    def trainers(self) -> int:
        """The number of trainers: the world size of the data (`DataShard(rank, roles.trainers)`)."""
        return self.world_size - self.servers

    def serves(self, rank: int) -> bool:
        """Return whether this process is a server.

        Raises:
            ValueError: the rank is out of range.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank must be from 0 to {self.world_size - 1}, got {rank}")
        return rank >= self.trainers

    def name(self, rank: int) -> str:
        """Return the name of a process for RPC: `trainer-0`, `server-0`."""
        return f"server-{rank - self.trainers}" if self.serves(rank) else f"trainer-{rank}"


def shares(sizes: Mapping[str, int], servers: int) -> list[list[str]]:
    """Assign parameters to servers: the largest first, each to the least loaded server. Deterministic on all processes.

    Args:
        sizes: the number of elements of each parameter, by its name.
        servers: the number of servers, at least 1.

    Raises:
        ValueError: there are fewer parameters than servers.
    """
    if not 1 <= servers <= len(sizes):
        raise ValueError(
            f"servers must be from 1 to {len(sizes)}, the number of parameters with a gradient, got {servers}: a parameter is not divided"
        )
    held: list[list[str]] = [[] for _ in range(servers)]
    # An empty parameter counts as one element, so that each server gets some.
    loads = [(0, server) for server in range(servers)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, server = heapq.heappop(loads)
        held[server].append(name)
        heapq.heappush(loads, (load + max(1, sizes[name]), server))
    return held


def may_apply(version: int, others: Iterable[int], bound: int) -> bool:
    """Return whether one more gradient may be applied now, so that none ever exceeds the staleness `bound` and no trainer waits forever.

    The staleness of a gradient is the number of updates between the parameters that it was computed with and those it is applied to. Each
    working trainer has a deadline: `bound` updates after its version. One more update is allowed if all others can still be applied in time,
    one after the other in the order of their deadlines. The trainer with the oldest version may always continue, provided that `bound` is at
    least the number of the others. (Bounded staleness: Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
    Parameter Server", 2013; here it bounds updates and not rounds.)

    Args:
        version: the updates so far.
        others: the versions with which the other trainers compute their gradients.
        bound: the staleness bound in updates, at least the number of the others.
    """
    return all(version + 1 + order - made <= bound for order, made in enumerate(sorted(others)))
