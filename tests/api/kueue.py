"""Kueue itself beside the API server of these tests, without its webhooks, and the queues that an administrator makes."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dev.localcluster import tools
from dev.localcluster.paths import from_environment
from tests.api.nodes import Namespace
from tests.api.plane import Plane
from tests.api.process import Operator
from tests.support.control_plane import ADMIN, RefusedError, free_port, start_mortal
from tests.support.polling import until

Json = dict[str, Any]
GROUP = "kueue.x-k8s.io"
API = f"/apis/{GROUP}/v1beta2"
MERGE = "application/merge-patch+json"
READY_SECONDS = 8
"""How long Kueue waits for the pods of an admitted job."""
WAIT_FOR_PODS = {
    "timeout": f"{READY_SECONDS}s",
    "blockAdmission": False,
    "requeuingStrategy": {"backoffBaseSeconds": 1, "backoffMaxSeconds": 1},
}
ALONE = {"leader_election": "false", "kueue": "true"}
# Kueue reads its certificate for metrics from there, and from nowhere else.
WITH_CERTIFICATES = (
    'mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics/certs && cp "$1"/tls.* /etc/kueue/metrics/certs/'
    ' && shift && exec "$@"'
)


def crds() -> list[Json]:
    """Kueue's CRDs as its module has them."""
    folder = tools.ensure_module(tools.MODULE_OF["kueue"], from_environment())
    return [yaml.load(path.read_text(), yaml.CSafeLoader) for path in sorted(folder.glob("*.yaml"))]


class Kueue:
    """The process. It can be away for a while."""

    def __init__(self, plane: Plane, **configuration: Any) -> None:
        self.plane = plane
        self.folder = plane.folder / "kueue"
        self.folder.mkdir(exist_ok=True)
        self.health_port = free_port()
        _certificate(self.folder)
        (self.folder / "config.yaml").write_text(json.dumps(self._configuration() | configuration))
        program = tools.ensure("kueue")["kueue"]
        words = [program, f"--config={self.folder}/config.yaml", f"--kubeconfig={plane.kubeconfig(ADMIN)}"]
        words += ["--feature-gates=VisibilityOnDemand=false", "--zap-log-level=2"]
        private = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", WITH_CERTIFICATES, "sh", self.folder]
        with (self.folder / "log").open("ab") as log:
            self.process = start_mortal([*map(str, (*private, *words))], stdout=log, stderr=log)

    def until_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, (self.folder / "log").read_text()[-4000:]
            url = f"http://127.0.0.1:{self.health_port}/readyz"
            return subprocess.run(["curl", "-sf", url], check=False, capture_output=True).returncode == 0

        until(ready, 60, "Kueue to be ready")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    def _configuration(self) -> Json:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.health_port}"},
            "metrics": {"bindAddress": f"127.0.0.1:{free_port()}"},
            "webhook": {"port": free_port(), "host": "127.0.0.1", "certDir": str(self.folder)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 500, "burst": 1000},
            "integrations": {
                "frameworks": ["batch/job"],
                "externalFrameworks": ["TrainingJob.v1alpha1.trainyard.dev"],
            },
        }


@contextmanager
def kueue(plane: Plane, **configuration: Any) -> Iterator[Kueue]:
    """Kueue that runs while inside."""
    made = Kueue(plane, **configuration)
    try:
        made.until_ready()
        yield made
    finally:
        made.end()


class Queues:
    """What an administrator makes, and what Kueue and the operator have agreed on, in one namespace."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace

    def put(self, plural: str, manifest: Json, namespace: str = "") -> None:
        """Make the object, or replace its spec."""
        place = f"{API}/namespaces/{namespace}/{plural}" if namespace else f"{API}/{plural}"
        name = manifest["metadata"]["name"]
        if self.plane.find(f"{place}/{name}"):
            self.plane.call("PATCH", f"{place}/{name}", manifest, MERGE)
        else:
            self.plane.call("POST", place, manifest)

    def flavor(self, name: str = "gpu", **spec: Any) -> None:
        self.put("resourceflavors", _named("ResourceFlavor", name, spec))

    def priority(self, name: str, value: int) -> None:
        self.put("workloadpriorityclasses", {**_named("WorkloadPriorityClass", name, {}), "value": value})

    def queue(self, name: str, cpus: str, flavor: str = "gpu", **more: Any) -> None:
        """A ClusterQueue with so many CPUs, and a LocalQueue of the same name."""
        quota = {"name": flavor, "resources": [{"name": "cpu", "nominalQuota": cpus}]}
        spec = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}],
        }
        self.put("clusterqueues", _named("ClusterQueue", name, spec | more))
        self.put("localqueues", _named("LocalQueue", name, {"clusterQueue": name}), self.namespace)

    def change(self, plural: str, name: str, patch: Mapping[str, Any], namespace: str = "") -> None:
        place = f"{API}/namespaces/{namespace}/{plural}" if namespace else f"{API}/{plural}"
        self.plane.call("PATCH", f"{place}/{name}", dict(patch), MERGE)

    def used(self, name: str) -> str:
        """The CPUs in use in a ClusterQueue, as Kueue counts them."""
        status = self.plane.find(f"{API}/clusterqueues/{name}").get("status") or {}
        usage = status.get("flavorsUsage") or [{}]
        return str((usage[0].get("resources") or [{"total": "0"}])[0].get("total", "0"))

    def workloads(self, job: str = "") -> list[Json]:
        """The Workloads of this job, or of all."""
        query = f"?labelSelector=trainyard.dev/job-name%3D{job}" if job else ""
        found = self.plane.call("GET", f"{API}/namespaces/{self.namespace}/workloads{query}")
        return list(found["items"])

    def workload(self, job: str) -> Json:
        """The Workload of this job, or nothing."""
        found = self.workloads(job)
        return found[0] if found else {}

    def condition(self, job: str, kind: str) -> Json:
        conditions = (self.workload(job).get("status") or {}).get("conditions") or ()
        return next((each for each in conditions if each["type"] == kind), {})

    def change_workload(self, job: str, patch: Mapping[str, Any]) -> None:
        self.change("workloads", self.workload(job)["metadata"]["name"], patch, self.namespace)

    def delete_workload(self, job: str) -> None:
        name = self.workload(job)["metadata"]["name"]
        try:
            self.plane.call("DELETE", f"{API}/namespaces/{self.namespace}/workloads/{name}")
        except RefusedError as error:
            if error.status != 404:
                raise


class Crew:
    """The operator, which can be away for a while."""

    def __init__(self, plane: Plane) -> None:
        self.plane, self.shift = plane, 0
        self.at_work = self.arrives()

    def arrives(self) -> Operator:
        self.shift += 1
        self.at_work = Operator(self.plane, f"shift-{self.shift}", **ALONE)
        self.at_work.until_ready()
        return self.at_work

    def leaves(self) -> None:
        assert not self.at_work.bugs(), self.at_work.log.read_text()[-4000:]
        self.at_work.end()


def submit(lab: Namespace, name: str, queue: str, workers: int = 2, priority: str = "", **spec: Any) -> None:
    """A job whose workers need a CPU each."""
    container = {"name": "main", "image": "example.com/trainer:1", "resources": {"requests": {"cpu": "1"}}}
    whole = {"template": {"spec": {"containers": [container]}}, "scheduling": {"queue": queue}, **spec}
    lab.submit(name, {"kueue.x-k8s.io/priority-class": priority} if priority else None, replicas=workers, **whole)


def finish(lab: Namespace, job: str) -> None:
    """All its workers succeed."""
    for pod in lab.pods(job):
        lab.ends(pod, 0)
    lab.until_phase("Complete", job)


def until_free(queues: Queues, queue: str) -> None:
    """No Workload holds quota of this queue, and Kueue has counted that."""

    def free() -> bool:
        held = [each for each in queues.workloads() if each["spec"]["queueName"] == queue and _holds_quota(each)]
        return not held and queues.used(queue) == "0"

    until(free, 20, f"no quota of {queue} to be in use")


def _holds_quota(workload: Json) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    holds = {each["type"] for each in conditions if each["status"] == "True"}
    return "QuotaReserved" in holds and "Finished" not in holds


def _named(kind: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": f"{GROUP}/v1beta2",
        "kind": kind,
        "metadata": {"name": name},
        **({"spec": spec} if spec else {}),
    }


def _certificate(folder: Path) -> None:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    files = ("-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt"))
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *files, "-subj", "/CN=localhost"], check=True, capture_output=True
    )
