"""Divide processes into groups that communicate in every step, and rarely with each other. Pure.

A replica group is a group of processes with fast links; links between groups are slow. Its processes have consecutive ranks, as the
operator numbers the workers of a node, and of adjacent nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ReplicaGroupLayout:
    """Processes in replica groups of equal size.

    Attributes:
        world_size: the number of processes.
        count: the number of groups.

    Raises:
        ValueError: the number of groups does not divide them.
    """

    world_size: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.world_size:
            raise ValueError(f"groups must be from 1 to {self.world_size}, the number of processes, not {self.count}")
        if self.world_size % self.count:
            raise ValueError(
                f"{self.world_size} processes cannot form {self.count} replica groups of equal size: choose a number that divides "
                f"{self.world_size}, or another number of processes"
            )

    @property
    def size(self) -> int:
        """The number of processes in a group."""
        return self.world_size // self.count

    def of(self, rank: int) -> int:
        """Return the index of a process's group."""
        return rank // self.size

    @property
    def intra_ranks(self) -> list[list[int]]:
        """Return the ranks of each group."""
        return [list(range(first, first + self.size)) for first in range(0, self.world_size, self.size)]

    @property
    def inter_ranks(self) -> list[list[int]]:
        """Return, for each position in a group, the ranks at this position in all groups."""
        return [list(range(position, self.world_size, self.size)) for position in range(self.size)]


def checked(levels: Mapping[int, int], layout: ReplicaGroupLayout) -> dict[int, int]:
    """The levels of hierarchical averaging, the most frequent first.

    Args:
        levels: after how many steps how many processes average their parameters: `{4: 8, 16: 64}`.
        layout: of the groups whose processes average gradients in every step.

    Raises:
        ValueError: a group size is invalid, or a level adds nothing to the one before.
    """
    if not levels:
        raise ValueError("levels must have one entry at least: {steps: processes}")
    ordered = dict(sorted(levels.items()))
    steps, below = 0, layout.size
    for period, size in ordered.items():
        if period < 1 or size < 1:
            raise ValueError(f"levels must be of positive numbers, and has {period}: {size}")
        if steps and period % steps:
            raise ValueError(f"levels has {period} steps after {steps}: each must be a multiple of the one before")
        if size % below or (size == below and len(ordered) > 1):
            raise ValueError(
                f"levels has groups of {size} processes above groups of {below}: each must consist of complete groups of the level below"
            )
        steps, below = period, size
    if below != layout.world_size:
        raise ValueError(f"the last of levels must be all {layout.world_size} processes, got {below}")
    return ordered
