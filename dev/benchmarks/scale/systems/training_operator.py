"""Kubeflow's training-operator: its load are PyTorchJobs of workers alone, a headless Service each.

It runs outside the cluster. No webhook server is asked, but it starts its controllers only after the rotator of its webhook's
certificates is ready. The rotator needs a Secret, a webhook configuration of a certain name, and files in a fixed folder.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from dev.benchmarks.scale import peers
from dev.benchmarks.scale.fleet import NAMESPACE, Fleet
from dev.benchmarks.scale.systems.base import (
    HOST,
    METRICS_PORT,
    PROBE_PORT,
    WEBHOOK_PORT,
    Command,
    Ground,
    Json,
    Post,
    System,
    pod_template,
)

OWN_NAMESPACE: Final = "kubeflow"
WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
WEBHOOK: Final = "validator.training-operator.kubeflow.org"
CERTIFICATES: Final = Path("/tmp/k8s-webhook-server/serving-certs")  # noqa: S108 - fixed in the program
TUNING: Final = ("-kube-api-qps=1000", "-kube-api-burst=2000", "-controller-threads=16")

JOBS: Final = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"


class TrainingOperator(System):
    """With its default flags (20 requests a second, one thread), or tuned."""

    jobs_path = JOBS
    after_failure = "replaces the failed worker alone; the others, which cannot go on without it, are left as they are"
    own_writes = frozenset({"POST pods", "POST services", "PUT pytorchjobs/status"})

    def __init__(self, name: str, flags: tuple[str, ...] = (), kind: str = "pytorchjob") -> None:
        self.name = name
        self._flags = flags
        self._kind = kind

    @override
    def install(self, ground: Ground) -> None:
        """The CRD, and what the rotator wants."""
        crd = peers.build(peers.TRAINING_OPERATOR, ground.paths) / f"kubeflow.org_{self._kind}s.yaml"
        ground.define(crd.read_bytes())
        ground.api.ensure("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": OWN_NAMESPACE}})
        secret = {"kind": "Secret", "metadata": {"name": "training-operator-webhook-cert"}}
        ground.api.ensure(f"/api/v1/namespaces/{OWN_NAMESPACE}/secrets", secret)
        ground.api.ensure(WEBHOOKS, _webhook())
        CERTIFICATES.mkdir(parents=True, exist_ok=True)
        for name, file in (("ca.crt", "ca.crt"), ("tls.crt", "apiserver.crt"), ("tls.key", "apiserver.key")):
            shutil.copyfile(ground.paths.pki / file, CERTIFICATES / name)

    @override
    def command(self, ground: Ground) -> Command:
        """The operator, for one kind of jobs alone."""
        program = peers.build(peers.TRAINING_OPERATOR, ground.paths) / "training-operator.v1"
        flags = (
            f"-enable-scheme={self._kind}",
            f"-kubeconfig={ground.paths.kubeconfig}",
            f"-metrics-bind-address={HOST}:{METRICS_PORT}",
            f"-health-probe-bind-address={HOST}:{PROBE_PORT}",
            f"-webhook-server-port={WEBHOOK_PORT}",
        )
        environment = {"MY_POD_NAMESPACE": OWN_NAMESPACE}
        return Command([str(program), *flags, *self._flags], f"http://{HOST}:{METRICS_PORT}/metrics", environment)

    @override
    def load(self, fleet: Fleet) -> list[Post]:
        """PyTorchJobs. A worker that was killed is replaced by itself: there is no restart of the group."""
        return [(JOBS, _job(name, fleet.workers)) for name in fleet.names()]

    @override
    def says(self, job: Mapping[str, Any], workers: int) -> bool:
        """All are active. Its condition Running holds as soon as one is."""
        statuses = (job.get("status") or {}).get("replicaStatuses") or {}
        return (statuses.get("Worker") or {}).get("active") == workers


def _job(name: str, workers: int) -> Json:
    worker = {"replicas": workers, "restartPolicy": "ExitCode", "template": pod_template()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


def _webhook() -> Json:
    """Return a webhook for a resource that does not exist, so that the server never calls it."""
    rule = {"apiGroups": ["kubeflow.org"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothing"]}
    service = {"name": "training-operator", "namespace": OWN_NAMESPACE}
    webhook = {
        "name": WEBHOOK,
        "clientConfig": {"service": service},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK},
        "webhooks": [webhook],
    }
