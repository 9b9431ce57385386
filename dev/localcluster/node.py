"""One node, from the host's side: one tree of namespaces, so that one SIGKILL is a power cut."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster import cgroups, network, node_config, processes
from dev.localcluster.addresses import SERVICE_NETWORK, node_address, node_name, pod_network
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.kubeconfig import client_configuration
from dev.localcluster.node_spec import NodeSpec

if TYPE_CHECKING:
    from dev.localcluster.paths import Paths

START_SECONDS: Final = 10.0
# In the node's disk folder -> where the programs have it fixed.
FOLDERS: Final = (("log", "/var/log"), ("cni-cache", "/var/lib/cni"), ("kubelet", "/var/lib/kubelet"))
# A slave: what the host unmounts later must not stay mounted in the nodes.
NAMESPACES: Final = ("unshare", "--mount", "--propagation", "slave", "--pid", "--net", "--uts", "--ipc", "--fork")


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What a node is made of."""

    number: int
    nodes: int
    gpus: int
    tools: dict[str, Path]


def boot(plan: NodePlan, paths: Paths) -> None:
    """Starts the node from its disk, which must hold its image store.

    Raises:
        LocalClusterError: the node's namespaces do not come up.
    """
    spec = _write_disk(plan, paths)
    cgroups.remove(plan.number)
    cgroups.create(plan.number)
    name = node_name(plan.number)
    folders = dict.fromkeys(str(program.parent) for program in plan.tools.values())
    pid = processes.start(
        paths,
        name,
        (*NAMESPACES, "--kill-child=SIGKILL", "--mount-proc", sys.executable, "-m", "dev.localcluster.node_init", spec),
        environment={
            "PATH": os.pathsep.join([*folders, os.environ["PATH"]]),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    own = Path("/proc/self/ns/net").readlink()
    deadline = time.monotonic() + START_SECONDS
    while _namespace(pid) in {own, None}:
        if time.monotonic() > deadline or processes.identify(pid) is None:
            raise LocalClusterError(f"{name} did not start: see {paths.logs / name}.log")
        time.sleep(0.01)
    network.connect(plan.number, pid)


def cut_power(number: int, paths: Paths) -> None:
    """Kills the node and all that runs in it; its disk stays."""
    name = node_name(number)
    pid = processes.alive(paths, name)
    if pid is None:
        return
    # The kernel ends process 1 only after all others of its namespace, and `unshare` only after process 1.
    processes.kill(processes.children(pid) or [pid], paths)
    processes.await_end([pid], paths)
    (paths.pids / name).unlink()
    cgroups.remove(number)


def enter(number: int, paths: Paths) -> list[str]:
    """The words before a command that make it run inside the node.

    Raises:
        LocalClusterError: the node is not running.
    """
    pid = processes.alive(paths, node_name(number))
    if pid is None:
        raise LocalClusterError(f"{node_name(number)} is not running: `node start {number}` boots it")
    return [
        *("nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net"),
        # The process that was started stays outside of the process namespace that it made for its child.
        f"--pid=/proc/{pid}/ns/pid_for_children",
    ]


def _namespace(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/ns/net").readlink()
    except OSError:
        return None


def _write_disk(plan: NodePlan, paths: Paths) -> Path:
    disk = paths.node(plan.number)
    tools = plan.tools
    facts = node_config.NodeFacts(
        number=plan.number,
        disk=disk,
        pki=paths.pki,
        proxy_kubeconfig=disk / "kube-proxy.kubeconfig",
        cni_programs=tools["bridge"].parent,
        runc=Path(shutil.which("runc") or "runc"),
        unified_cgroups=cgroups.is_unified(),
    )
    node_config.write(facts)
    name = node_name(plan.number)
    for user, certificate in (("kubelet", name), ("kube-proxy", "proxy")):
        configuration = json.dumps(client_configuration(paths.pki, certificate))
        (disk / f"{user}.kubeconfig").write_text(configuration)
    address = node_address(plan.number)
    daemons: list[tuple[str, tuple[str, ...]]] = [
        ("containerd", (str(tools["containerd"]), f"--config={disk}/containerd.toml")),
        ("kube-proxy", (str(tools["kube-proxy"]), f"--config={disk}/kube-proxy.yaml", f"--hostname-override={name}")),
        (
            "kubelet",
            (
                str(tools["kubelet"]),
                f"--kubeconfig={disk}/kubelet.kubeconfig",
                f"--config={disk}/kubelet.yaml",
                f"--hostname-override={name}",
                f"--node-ip={address}",
            ),
        ),
    ]
    if plan.gpus:
        daemons.append(("fakegpu", (str(tools["fakegpu"]), f"-count={plan.gpus}")))
    others = [number for number in range(1, plan.nodes + 1) if number != plan.number]
    spec = NodeSpec(
        name=name,
        address=address,
        disk=str(disk),
        logs=str(paths.logs),
        gateway_prefix=24,
        routes=tuple((pod_network(number), node_address(number)) for number in others),
        # So that processes in the node's own network can use the addresses of Services too.
        device_routes=(str(SERVICE_NETWORK),),
        folders=FOLDERS,
        daemons=tuple(daemons),
        wait_for_socket=node_config.CONTAINERD_SOCKET,
    )
    spec.write(disk / "node.json")
    return disk / "node.json"
