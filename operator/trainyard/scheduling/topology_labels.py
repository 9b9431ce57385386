"""The labels of nodes that name their place in the network. Pure data."""

from typing import Final

TOPOLOGY_LABELS: Final = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    # Topograph: of its first releases, of later ones, and of its present one, in which tier 0 is next to the node.
    "network.topology.nvidia.com/datacenter",
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/tier-2",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/tier-1",
    "network.topology.nvidia.com/block",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/tier-0",
    # The last layer is next to the node.
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "topology.k8s.aws/network-node-layer-4",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "cloud.google.com/gce-topology-host",
    # Domains of NVLink between nodes.
    "network.topology.nvidia.com/accelerator",
    "topology.k8s.aws/ultraserver-id",
    "nvidia.com/gpu.clique",
)
"""The widest part of the network first. `docs/topology.md` names the source of each. A cluster has few of them."""
