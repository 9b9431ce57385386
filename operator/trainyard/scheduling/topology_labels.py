"""The labels of nodes that name their place in the network. Pure data."""

from typing import Final

TOPOLOGY_LABELS: Final = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    # Topograph 1: tier 0 is next to the node.
    "fabric.topograph.run/tier-3",
    "fabric.topograph.run/tier-2",
    "fabric.topograph.run/tier-1",
    "fabric.topograph.run/tier-0",
    # Topograph 0: datacenter, spine and block; later core, spine and leaf; then tiers.
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
    "accelerator.topograph.run/domain",
    "accelerator.topograph.run/sub-domain",
    "network.topology.nvidia.com/accelerator",
    "topology.k8s.aws/ultraserver-id",
    "nvidia.com/gpu.clique",
)
"""The widest part of the network first. `docs/topology.md` names the source of each. A cluster has few of them."""
