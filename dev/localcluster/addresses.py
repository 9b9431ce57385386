"""The cluster's fixed addresses and names. Pure: nothing is looked up or set here."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Final

BRIDGE: Final = "trainyard0"
# Fixed, because a bridge otherwise takes the lowest address among its ports: when the node with that one dies, the
# others' ARP entries go stale and the whole cluster is cut off for seconds.
BRIDGE_MAC: Final = "02:00:0a:4e:00:01"
VETH_PREFIX: Final = "trainyard-n"
CLUSTER_NETWORK: Final = IPv4Network("10.78.0.0/16")
SERVICE_NETWORK: Final = IPv4Network("10.96.0.0/16")
GATEWAY: Final = "10.78.0.1"
KUBERNETES_SERVICE: Final = "10.96.0.1"
API_PORT: Final = 26443
API_URL: Final = f"https://{GATEWAY}:{API_PORT}"
DNS_PORT: Final = 53
DNS_DOMAIN: Final = "cluster.local"
ETCD_PORT: Final = 22379
ETCD_PEER_PORT: Final = 22380
CONTROLLER_MANAGER_PORT: Final = 22357
METRICS_SERVER_PORT: Final = 26444
ADAPTER_PORT: Final = 26445
PROMETHEUS_PORT: Final = 22390
PROMETHEUS_URL: Final = f"http://127.0.0.1:{PROMETHEUS_PORT}"
MOST_NODES: Final = 200


def node_name(number: int) -> str:
    """The node's name, counted from 1."""
    return f"node{number}"


def node_address(number: int) -> str:
    """The node's address on the bridge."""
    return str(CLUSTER_NETWORK.network_address + 10 + number)


def pod_network(number: int) -> str:
    """The /24 from which a node's pods get their addresses."""
    return str(IPv4Network((int(CLUSTER_NETWORK.network_address) + 256 * number, 24)))


def veth_name(number: int) -> str:
    """The bridge's end of the node's cable."""
    return f"{VETH_PREFIX}{number}"
