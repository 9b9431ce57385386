"""What nodes and users do, in one namespace: a thread that runs every pod that it finds, and buries what was deleted."""

import threading
from types import TracebackType
from typing import Any, Self

from tests.api.plane import JOBS, Plane
from tests.support.control_plane import RefusedError
from tests.support.polling import until

Json = dict[str, Any]
MERGE = "application/merge-patch+json"
ENDED = "2026-01-01T00:05:00Z"


class Namespace:
    """A namespace whose pods run as soon as they are there."""

    def __init__(self, plane: Plane, name: str) -> None:
        self.plane = plane
        self.name = name
        self.runs = True
        """Whether pods are started. Deleted ones go in any case."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"nodes of {name}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """The nodes are out of touch from now on."""
        self._end.set()
        self._thread.join()

    # Users

    def submit(self, name: str = "job", labels: Any = None, **spec: Any) -> None:
        container = {"name": "main", "image": "example.com/trainer:1"}
        whole = {"framework": "none", "replicas": 2, "template": {"spec": {"containers": [container]}}, **spec}
        metadata = {"name": name, "labels": labels or {}}
        manifest = {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata}
        self.plane.call("POST", self._jobs(), {**manifest, "spec": whole})

    def change(self, name: str, **spec: Any) -> None:
        self.plane.call("PATCH", self._jobs(name), {"spec": spec}, MERGE)

    def scale(self, name: str, replicas: int) -> None:
        self.plane.call("PATCH", f"{self._jobs(name)}/scale", {"spec": {"replicas": replicas}}, MERGE)

    def remove(self, name: str) -> None:
        self.plane.forget(self._jobs(name))

    def job(self, name: str) -> Json:
        return self.plane.find(self._jobs(name))

    def jobs(self) -> list[Json]:
        return list(self.plane.call("GET", self._jobs())["items"])

    def status(self, name: str = "job") -> Json:
        return dict(self.job(name).get("status") or {})

    def condition(self, kind: str, name: str = "job") -> Json:
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def pods(self, job: str = "job") -> dict[str, Json]:
        query = f"{self._pods()}?labelSelector=trainyard.dev/job-name%3D{job}"
        return {pod["metadata"]["name"]: pod for pod in self.plane.call("GET", query)["items"]}

    def events(self, reason: str, job: str = "") -> list[str]:
        """What events with this reason say: of this job, or of all."""
        found = self.plane.call("GET", f"/apis/events.k8s.io/v1/namespaces/{self.name}/events")["items"]
        return [e["note"] for e in found if e["reason"] == reason and job in {"", e["regarding"]["name"]}]

    def until_phase(self, phase: str, name: str = "job", within: float = 30) -> None:
        until(lambda: self.status(name).get("phase") == phase, within, f"{name} to be {phase}")

    # Nodes

    def bind(self, pod: str) -> None:
        binding = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": "node1"}}
        self.plane.call("POST", f"{self._pods(pod)}/binding", binding)

    def refuse(self, pod: str) -> None:
        """There is no node for this pod."""
        why = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available",
        }
        self.plane.call("PATCH", f"{self._pods(pod)}/status", {"status": {"conditions": [why]}}, MERGE)

    def report_event(self, pod: str, reason: str, note: str) -> None:
        """Write a warning about a pod as the kubelet does, in the older API."""
        metadata = self.plane.call("GET", self._pods(pod))["metadata"]
        about = {"kind": "Pod", "namespace": self.name, "name": pod, "uid": metadata["uid"]}
        event: Json = {"metadata": {"generateName": f"{pod}."}, "involvedObject": about, "type": "Warning"}
        event |= {"reason": reason, "message": note, "count": 1, "source": {"component": "kubelet"}}
        times = {"firstTimestamp": ENDED, "lastTimestamp": ENDED}
        self.plane.call("POST", f"/api/v1/namespaces/{self.name}/events", {**event, **times})

    def ends(self, pod: str, code: int) -> None:
        end = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": ENDED}
        self._report(pod, "Failed" if code else "Succeeded", {"terminated": end}, ready="False")

    def _work(self) -> None:
        while not self._end.wait(0.1):
            for pod in self.plane.call("GET", self._pods())["items"]:
                try:
                    self._look(pod)
                except RefusedError as error:
                    if error.status not in {404, 409}:
                        raise

    def _look(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        if "deletionTimestamp" in pod["metadata"]:
            self.plane.call("DELETE", f"{self._pods(name)}?gracePeriodSeconds=0")
        elif self.runs and pod["status"].get("phase") == "Pending":
            if not pod["spec"].get("nodeName"):
                self.bind(name)
            self._report(name, "Running", {"running": {}}, ready="True")

    def _report(self, pod: str, phase: str, state: Json, *, ready: str) -> None:
        image = {"image": "example.com/trainer:1", "imageID": "", "restartCount": 0, "ready": ready == "True"}
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}]
        status = {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [{"name": "main", "state": state} | image],
        }
        self.plane.call("PATCH", f"{self._pods(pod)}/status", {"status": status}, MERGE)

    def _pods(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.name}/pods" + (f"/{name}" if name else "")

    def _jobs(self, name: str = "") -> str:
        return f"{JOBS}/namespaces/{self.name}/trainingjobs" + (f"/{name}" if name else "")
