"""What was asked for, kept beside the running cluster."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dev.localcluster.addresses import MOST_NODES
from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from pathlib import Path

    from dev.localcluster.paths import Paths


class Profile(StrEnum):
    """Real nodes, or many played ones."""

    STANDARD = "standard"
    SCALE = "scale"


MOST: dict[Profile, int] = {Profile.STANDARD: MOST_NODES, Profile.SCALE: 5000}


@dataclass(frozen=True, slots=True)
class Shape:
    """The arguments of `up`."""

    nodes: int
    gpus_per_node: int
    profile: Profile

    def describe(self) -> str:
        """In words."""
        simulated = " (simulated by kwok)" if self.profile == Profile.SCALE else ""
        return f"{self.nodes} nodes{simulated} with {self.gpus_per_node} fake GPUs each"

    def check(self) -> None:
        """Refuses what cannot be.

        Raises:
            LocalClusterError: a number is out of its range.
        """
        most = MOST[self.profile]
        if not 1 <= self.nodes <= most:
            raise LocalClusterError(f"--nodes is {self.nodes}, but profile {self.profile} takes 1 to {most}")
        if not 0 <= self.gpus_per_node <= 1000:
            raise LocalClusterError(f"--gpus-per-node is {self.gpus_per_node}, but 0 to 1000 are possible")


def write(shape: Shape, paths: Paths) -> None:
    """Marks the cluster as complete."""
    _file(paths).write_text(json.dumps(asdict(shape)))


def read(paths: Paths) -> Shape | None:
    """The shape of the cluster that came up completely; none if there is none, or only parts of one."""
    try:
        fields = json.loads(_file(paths).read_text())
        return Shape(fields["nodes"], fields["gpus_per_node"], Profile(fields["profile"]))
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _file(paths: Paths) -> Path:
    return paths.state / "shape.json"
