"""The bridge between the nodes, and each node's cable to it."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Final

from dev.localcluster.addresses import (
    ADAPTER_PORT,
    API_PORT,
    BRIDGE,
    BRIDGE_MAC,
    CLUSTER_NETWORK,
    CONTROLLER_MANAGER_PORT,
    DNS_PORT,
    ETCD_PEER_PORT,
    ETCD_PORT,
    GATEWAY,
    METRICS_SERVER_PORT,
    PROMETHEUS_PORT,
    VETH_PREFIX,
    node_address,
    pod_network,
    veth_name,
)
from dev.localcluster.command import run
from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from dev.localcluster.paths import Paths


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that a process of the control plane will listen on."""

    address: str
    port: int
    kind: socket.SocketKind = socket.SOCK_STREAM


LOOPBACK_ENDPOINTS: Final = tuple(
    Endpoint("127.0.0.1", port) for port in (ETCD_PORT, ETCD_PEER_PORT, CONTROLLER_MANAGER_PORT, PROMETHEUS_PORT)
)
BRIDGE_ENDPOINTS: Final = (
    Endpoint(GATEWAY, API_PORT),
    Endpoint(GATEWAY, METRICS_SERVER_PORT),
    Endpoint(GATEWAY, ADAPTER_PORT),
    Endpoint(GATEWAY, DNS_PORT),
    Endpoint(GATEWAY, DNS_PORT, socket.SOCK_DGRAM),
)


def require_free_ports(endpoints: tuple[Endpoint, ...]) -> None:
    """Can they be listened on?

    Raises:
        LocalClusterError: another program does so already.
    """
    for endpoint in endpoints:
        with socket.socket(socket.AF_INET, endpoint.kind) as probe:
            # As the servers themselves do: without it, connections of a cluster just torn down count as busy.
            if endpoint.kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((endpoint.address, endpoint.port))
                if endpoint.kind == socket.SOCK_STREAM:
                    probe.listen()
            except OSError as error:
                protocol = "tcp" if endpoint.kind == socket.SOCK_STREAM else "udp"
                raise LocalClusterError(
                    f"{protocol} port {endpoint.port} of {endpoint.address} cannot be used ({error.strerror}): "
                    f"see `ss -lnp 'sport = {endpoint.port}'` for the program that holds it and stop that"
                ) from error


def require_free_addresses() -> None:
    """Is the cluster's network not in use on this machine?

    Raises:
        LocalClusterError: another interface has a part of it.
    """
    for route in json.loads(run("ip", "-json", "-4", "route", "show", "table", "all", doing="reading the routes")):
        if route.get("dev") != BRIDGE and overlaps(route["dst"]):
            raise LocalClusterError(
                f"the addresses {route['dst']} belong to {route.get('dev', 'another route')} on this machine, and the "
                f"local cluster needs all of {CLUSTER_NETWORK}: take that interface or route away while it runs"
            )


def overlaps(destination: str) -> bool:
    """Is the route inside the cluster's network? A wider one does no harm, as the more exact route wins."""
    return destination != "default" and IPv4Network(destination).subnet_of(CLUSTER_NETWORK)


def owner() -> str | None:
    """Return the state folder of the cluster that owns the bridge, from the alias of the interface."""
    for link in json.loads(run("ip", "-json", "link", "show", doing="reading the interfaces")):
        if link["ifname"] == BRIDGE:
            return str(link.get("ifalias", ""))
    return None


def create_bridge(paths: Paths) -> None:
    """Makes the bridge with the host's address on it."""
    doing = "making the cluster's bridge"
    run("ip", "link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge", doing=doing)
    run("ip", "link", "set", BRIDGE, "alias", str(paths.state), doing=doing)
    run("ip", "address", "add", f"{GATEWAY}/24", "dev", BRIDGE, doing=doing)
    run("ip", "link", "set", BRIDGE, "up", doing=doing)


def delete_all() -> None:
    """Removes the bridge and what is left of the cables to it. The routes go with them."""
    doing = "removing the cluster's bridge"
    # A dead node's cable vanishes by itself, but only when the kernel gets to it, which may be in this very moment.
    for name in (name for name in _interfaces() if name.startswith(VETH_PREFIX)):
        with contextlib.suppress(LocalClusterError):
            run("ip", "link", "delete", name, doing=doing)
    if BRIDGE in _interfaces():
        run("ip", "link", "delete", BRIDGE, doing=doing)


def connect(number: int, pid: int) -> None:
    """Joins the network namespace of a process to the bridge, as `eth0` there."""
    doing = f"connecting node {number}"
    veth = veth_name(number)
    with contextlib.suppress(LocalClusterError):  # a dead node's cable may still be there for a moment
        run("ip", "link", "delete", veth, doing=doing)
    run("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", str(pid), doing=doing)
    run("ip", "link", "set", veth, "master", BRIDGE, "up", doing=doing)
    run("ip", "route", "replace", pod_network(number), "via", node_address(number), "dev", BRIDGE, doing=doing)


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]
