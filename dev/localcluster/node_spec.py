"""What the host tells a node's first process. Shared by both sides; imports nothing heavy, since every node loads it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One boot of one node."""

    name: str
    address: str
    disk: str
    logs: str
    gateway_prefix: int
    routes: tuple[tuple[str, str], ...]  # destination, next hop
    device_routes: tuple[str, ...]  # destinations on the cable itself
    folders: tuple[tuple[str, str], ...]  # on the disk, where it is seen
    daemons: tuple[tuple[str, tuple[str, ...]], ...]  # name, command; started in this order
    wait_for_socket: str  # of the first daemon; the others need it

    def write(self, path: Path) -> None:
        """Writes it as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))


def read(path: Path) -> NodeSpec:
    """Reads what `NodeSpec.write` wrote."""
    fields = json.loads(path.read_text())
    fields["routes"] = tuple(tuple(route) for route in fields["routes"])
    fields["device_routes"] = tuple(fields["device_routes"])
    fields["folders"] = tuple(tuple(folder) for folder in fields["folders"])
    fields["daemons"] = tuple((name, tuple(command)) for name, command in fields["daemons"])
    return NodeSpec(**fields)
