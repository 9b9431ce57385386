"""Actions of nodes and users on a fake cluster."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from tests.support.fake_api import FakeApi
from tests.support.fake_cluster import Json
from tests.support.waiting import until
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.kube.resource import PODS

LAB = "lab"
ENDED = "2026-01-01T00:05:00Z"


class Lab:
    """A namespace with one job, and the nodes that run its pods."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.cluster = api.cluster

    def submit(self, name: str = "job", **spec: Any) -> Json:
        container = {"name": "main", "image": "example.com/trainer:1"}
        whole = {"framework": "none", "replicas": 2, "template": {"spec": {"containers": [container]}}, **spec}
        return self.cluster.create(TRAINING_JOBS, LAB, {"metadata": {"name": name}, "spec": whole})

    def change(self, name: str = "job", **spec: Any) -> None:
        generation = self.cluster.get(TRAINING_JOBS, LAB, name)["metadata"]["generation"] + 1
        self.cluster.merge(TRAINING_JOBS, LAB, name, {"spec": spec, "metadata": {"generation": generation}})

    def status(self, name: str = "job") -> Json:
        found: Json = self.cluster.get(TRAINING_JOBS, LAB, name).get("status") or {}
        return found

    def condition(self, kind: str, name: str = "job") -> Json:
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.cluster.objects(PODS, LAB)]

    def bind(self, pod: str, node: str = "node1") -> None:
        self.cluster.merge(PODS, LAB, pod, {"spec": {"nodeName": node}})

    def runs(self, *pods: str, nodes: Iterable[str] = ()) -> None:
        """Run these pods on these nodes, or on one."""
        for pod, node in zip_longest(pods, nodes, fillvalue="node1"):
            self.bind(pod, node)
            self._report(pod, "Running", {"running": {}}, ready="True")

    def ends(self, pod: str, code: int, message: str = "") -> None:
        reason = "Completed" if code == 0 else "Error"
        end = {"exitCode": code, "reason": reason, "message": message, "finishedAt": ENDED}
        self._report(pod, "Failed" if code else "Succeeded", {"terminated": end}, ready="False")

    async def until_pods(self, *names: str) -> None:
        await until(lambda: self.pods() == sorted(names))

    async def until_phase(self, phase: str, name: str = "job") -> None:
        await until(lambda: self.status(name).get("phase") == phase)

    def _report(self, pod: str, phase: str, state: Json, *, ready: str) -> None:
        self.cluster.set_status(
            PODS,
            LAB,
            pod,
            phase=phase,
            podIP="10.0.0.7",
            conditions=[{"type": "Ready", "status": ready}],
            containerStatuses=[{"name": "main", "state": state}],
        )
