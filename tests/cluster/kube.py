"""Access the cluster with kubectl, as users do."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dev.demo import install
from dev.demo.commands import Cluster, DemoError

Json = dict[str, Any]
IMAGE = "localhost/trainyard/trainer:dev"


@dataclass(frozen=True)
class Kube:
    """One namespace of the cluster."""

    cluster: Cluster
    namespace: str

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kube("--namespace", self.namespace, *arguments, stdin=stdin)

    def refused(self, *arguments: str, stdin: str | None = None) -> str:
        """Return the error of kubectl for a request that the server rejects."""
        try:
            done = self.run(*arguments, stdin=stdin)
        except DemoError as error:
            return str(error)
        raise AssertionError(f"was not refused: {done}")

    def apply(self, *manifests: Json) -> str:
        return self.run("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def get(self, kind: str, name: str) -> Json:
        return dict(json.loads(self.run("get", kind, name, "-o", "json", "--show-managed-fields")))

    def find(self, kind: str, name: str) -> Json | None:
        text = self.run("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text else None

    def find_all(self, kind: str, selector: str = "") -> list[Json]:
        return list(json.loads(self.run("get", kind, "-o", "json", "-l", selector))["items"])

    def pods(self, job: str) -> list[Json]:
        return self.find_all("pods", f"trainyard.dev/job-name={job}")

    def status(self, job: str) -> Json:
        return dict(self.get("tj", job).get("status", {}))

    def condition(self, job: str, kind: str) -> Json:
        return next((c for c in self.status(job).get("conditions", []) if c["type"] == kind), {})

    def phase(self, job: str) -> str | None:
        return self.status(job).get("phase")

    def wait_phase(self, job: str, phase: str, seconds: float = 60) -> Json:
        self.until(lambda: self.phase(job) == phase, seconds, f"{job} to be {phase}")
        return self.status(job)

    def until(self, holds: Callable[[], object], seconds: float, what: str) -> None:
        """Wait until `holds`. On timeout the error shows the job, its pods and its events."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds:.0f} s for {what}\n{self.picture()}")
            time.sleep(0.25)

    def picture(self) -> str:
        return "\n".join(
            self.run("get", kind, *more)
            for kind, *more in (
                ("tj", "-o", "yaml"),
                ("pods", "-o", "wide"),
                ("events", "--sort-by=.metadata.creationTimestamp"),
            )
        )

    def delete_pod(self, name: str, *more: str) -> None:
        self.run("delete", "pod", name, "--wait=false", *more)

    def kill_main(self, pod: str) -> None:
        """Make the main container exit with code 7, as a program that fails does."""
        self.run("exec", pod, "-c", "main", "--", "sh", "-c", "echo 7 > /tmp/end")

    def leader(self) -> str:
        """Return the pod that holds the Lease, in the operator's namespace; empty if none does."""
        lease = self.find("lease", install.RELEASE) or {}
        held: str = lease.get("spec", {}).get("holderIdentity", "")
        return held.partition("_")[0]

    def uids(self, job: str) -> dict[str, str]:
        """Return the UIDs of a job's pods, by name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods(job)}

    def without_pod_security(self) -> None:
        """Exempt the namespace, as an administrator may: a host folder is against the chart's default standard."""
        self.run("label", "namespace", self.namespace, "pod-security.kubernetes.io/enforce=privileged", "--overwrite")

    def other(self, namespace: str) -> "Kube":
        return replace(self, namespace=namespace)


def processes(pod: Json, word: str) -> list[int]:
    """Return the PIDs of a pod's processes with this word in their command line, the oldest first. The nodes run on this machine."""
    found, uid = dict[int, int](), pod["metadata"]["uid"]
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            groups, words = (folder / "cgroup").read_text(), (folder / "cmdline").read_text(errors="replace")
            if (uid in groups or uid.replace("-", "_") in groups) and word in words:
                # PIDs wrap around at their limit; the start time gives the order.
                started = (folder / "stat").read_text().rpartition(")")[2].split()[19]
                found[int(folder.name)] = int(started)
    return sorted(found, key=lambda pid: (found[pid], pid))


# Runs until a test writes an exit code into /tmp/end; exits at once on SIGTERM. The next attempt may start in the same container.
EXITS_ON_REQUEST = (
    "trap 'exit 143' TERM; while [ ! -s /tmp/end ]; do sleep 0.2; done; code=$(cat /tmp/end); rm /tmp/end; exit $code"
)


def job(
    name: str = "job", *, replicas: int = 2, script: str = EXITS_ON_REQUEST, framework: str = "none", **spec: Any
) -> Json:
    """Return a TrainingJob whose workers run a shell script."""
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["sh", "-c", script],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": 2, "containers": [container]}}
    return {
        "apiVersion": "trainyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"framework": framework, "replicas": replicas, "template": template, **spec},
    }


def train_on_cpus(manifest: Json) -> Json:
    """Have the programs of a TrainingJob use CPUs, although it requests GPUs: those of these nodes are simulated."""
    container = main_container(manifest)
    container.setdefault("env", []).append({"name": "TRAINYARD_ACCELERATORS_PER_REPLICA", "value": "0"})
    return manifest


def main_container(manifest: Json) -> Json:
    """Return the main container of a TrainingJob's template."""
    container: Json = manifest["spec"]["template"]["spec"]["containers"][0]
    return container
