"""The scale profile: nodes played by kwok instead of kubelets, for thousands of pods that run nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dev.localcluster import processes
from dev.localcluster.addresses import node_name
from dev.localcluster.command import run
from dev.localcluster.node_view import GPU_RESOURCE

if TYPE_CHECKING:
    from pathlib import Path

    from dev.localcluster.api import Api
    from dev.localcluster.paths import Paths

ANNOTATION: Final = ("kwok.x-k8s.io/node", "fake")
POD_NETWORK: Final = "10.79.0.0/16"  # nothing listens there
LEASE_SECONDS: Final = 40
CAPACITY: Final = {"cpu": "4096", "memory": "64Ti", "ephemeral-storage": "64Ti", "pods": "10000"}


def start(paths: Paths, tools: dict[str, Path]) -> None:
    """Starts kwok with the life cycles that it brings along."""
    stages = paths.state / "stages.yaml"
    stages.write_text(run(tools["stages"], doing="writing kwok's configuration"))
    processes.start(
        paths,
        "kwok",
        (
            tools["kwok"],
            f"--kubeconfig={paths.kubeconfig}",
            f"--config={stages}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={'='.join(ANNOTATION)}",
            f"--node-lease-duration-seconds={LEASE_SECONDS}",
            f"--cidr={POD_NETWORK}",
        ),
    )


def node(number: int, gpus: int) -> dict[str, Any]:
    """A node that is large in all but its GPUs."""
    name = node_name(number)
    amounts = CAPACITY | ({GPU_RESOURCE: str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": dict([ANNOTATION]),
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"},
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def create_nodes(api: Api, count: int, gpus: int) -> None:
    """Registers the nodes; kwok makes them Ready."""
    for number in range(1, count + 1):
        api.create("/api/v1/nodes", node(number, gpus))
