"""Where nodes are in the network, by their labels, and what is wrong with them. No I/O: a reflector writes this, where the chart grants that permission."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.domain.state.node_signals import NO_SIGNALS, NodeSignals, node_signals
from trainyard.domain.state.observe import place_of
from trainyard.kube.store import Store
from trainyard.scheduling.rank_order import Place
from trainyard.scheduling.topology_labels import TOPOLOGY_LABELS


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The place of a node, and what is wrong with it."""

    uid: str
    resource_version: int
    name: str
    place: Place
    signals: NodeSignals = NO_SIGNALS


@dataclass(frozen=True, slots=True)
class NodePlaces:
    """The places of all nodes that are known."""

    labels: tuple[str, ...] = TOPOLOGY_LABELS
    """The labels that name a place, the widest part of the network first."""
    nodes: Store[NodeRecord, str] = field(default_factory=lambda: Store(lambda node: node.name))

    def record(self, raw: Mapping[str, Any]) -> NodeRecord:
        """Parse a node."""
        metadata = raw["metadata"]
        place = place_of(metadata.get("labels") or {}, self.labels)
        return NodeRecord(metadata["uid"], int(metadata["resourceVersion"]), metadata["name"], place, node_signals(raw))

    def of(self, node: str) -> Place:
        """Return the place of a node; nothing where it is not known."""
        return next((record.place for record in self.nodes.of(node)), ())

    def troubled(self, nodes: Iterable[str]) -> Mapping[str, NodeSignals]:
        """Return what is wrong with each of these nodes. A node of which nothing is known, or nothing is wrong, is left out."""
        if not self.nodes:
            # Without the permission, no reconcile of a large group looks through its pods.
            return {}
        records = (record for node in {*nodes} for record in self.nodes.of(node))
        return {record.name: record.signals for record in records if record.signals is not NO_SIGNALS}
