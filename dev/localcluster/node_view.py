"""Nodes as the API server reports them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dev.localcluster.api import Api

GPU_RESOURCE: Final = "nvidia.com/gpu"
LONG_AGO: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class NodeView:
    """What is of interest here."""

    name: str
    ready: bool
    heartbeat: datetime
    gpus: int

    def is_up(self, gpus: int, since: datetime) -> bool:
        """Return whether the node reported Ready with its GPUs after that time. A dead node stays Ready until its lease expires."""
        return self.ready and self.gpus == gpus and self.heartbeat > since


def parse(node: dict[str, Any]) -> NodeView:
    """A view of a core/v1 Node."""
    status = node.get("status", {})
    conditions: dict[str, dict[str, str]] = {entry["type"]: entry for entry in status.get("conditions", [])}
    condition = conditions.get("Ready", {})
    heartbeat = condition.get("lastHeartbeatTime")
    return NodeView(
        name=node["metadata"]["name"],
        ready=condition.get("status") == "True",
        heartbeat=datetime.fromisoformat(heartbeat) if heartbeat else LONG_AGO,
        gpus=_whole(status.get("allocatable", {}).get(GPU_RESOURCE, "0")),
    )


def _whole(quantity: str) -> int:
    """The server writes a round number of devices shorter: 1000 comes back as 1k."""
    return int(quantity.removesuffix("k")) * (1000 if quantity.endswith("k") else 1)


def nodes(api: Api) -> dict[str, NodeView]:
    """All nodes by name.

    Raises:
        ApiUnavailableError: there was no good answer.
    """
    return {view.name: view for view in map(parse, api.get("/api/v1/nodes")["items"])}
