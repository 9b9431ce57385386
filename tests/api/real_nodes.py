"""Nodes for schedulers that run: objects with room for pods. Nothing runs on them; pods that a scheduler has bound are reported as running."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from tests.api.nodes import MERGE, Namespace
from tests.api.plane import Plane
from tests.support.control_plane import RefusedError

Json = dict[str, Any]


class BoundPods(Namespace):
    """A namespace whose pods run once a scheduler has bound them."""

    @override
    def _look(self, pod: Json) -> None:
        if "deletionTimestamp" in pod["metadata"] or pod["spec"].get("nodeName"):
            super()._look(pod)

    def bound(self, job: str) -> int:
        """Return how many pods of the job have a node."""
        return sum("nodeName" in pod["spec"] for pod in self.pods(job).values())


@contextmanager
def nodes(plane: Plane, number: int, cpus: int) -> Iterator[None]:
    """Make so many nodes with so many processors each, and remove them at the end."""
    names = [f"node{index + 1}" for index in range(number)]
    room = {"cpu": str(cpus), "memory": "64Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    for name in names:
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        plane.call("POST", "/api/v1/nodes", {"metadata": metadata})
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        plane.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)
        # The API server gives this taint to each new node, and a controller that does not run here takes it away.
        plane.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)
    try:
        yield
    finally:
        for name in names:
            plane.forget(f"/api/v1/nodes/{name}")


def open_queue(plane: Plane, name: str, stop: threading.Event) -> None:
    """Say that a queue of Volcano is open, as its controller does, once it is there."""
    while not stop.wait(0.2):
        try:
            plane.call(
                "PATCH",
                f"/apis/scheduling.volcano.sh/v1beta1/queues/{name}/status",
                {"status": {"state": "Open"}},
                MERGE,
            )
        except RefusedError as error:
            if error.status != 404:
                raise
            continue
        return
