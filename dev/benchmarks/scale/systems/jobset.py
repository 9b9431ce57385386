"""JobSet: a set of one replicated Job each. The pods are made by the Job controller of kube-controller-manager.

It runs outside the cluster with its own default limits (500 requests a second). Its webhooks are not asked, so a manifest
says itself what they would fill in.
"""

import json
import shutil
from collections.abc import Mapping
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

READER: Final = "metrics-reader"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
CONFIGURATION: Final = {
    "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
    "kind": "Configuration",
    "internalCertManagement": {"enable": False},
    "leaderElection": {"leaderElect": False},
    "clientConnection": {"qps": 500, "burst": 500},
    "metrics": {"bindAddress": f"{HOST}:{METRICS_PORT}"},
    "health": {"healthProbeBindAddress": f"{HOST}:{PROBE_PORT}"},
}

JOBS: Final = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"


class JobSet(System):
    """The operator, with the controller manager's share."""

    name = "jobset"
    jobs_path = JOBS
    uses_job_controller = True
    own_writes = frozenset({"POST jobs", "POST services", "PUT jobsets/status"})

    @override
    def install(self, ground: Ground) -> None:
        """The CRD, and somebody who may read the metrics."""
        crd = peers.build(peers.JOBSET, ground.paths) / "jobset.x-k8s.io_jobsets.yaml"
        ground.define(crd.read_bytes())
        ground.api.ensure(f"{RBAC}/clusterroles", _role())
        ground.api.ensure(f"{RBAC}/clusterrolebindings", _binding())
        ground.api.ensure(
            f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"kind": "ServiceAccount", "metadata": {"name": READER}}
        )

    @override
    def command(self, ground: Ground) -> Command:
        """The operator by a configuration file; its metrics want a token."""
        program = peers.build(peers.JOBSET, ground.paths) / "jobset"
        folder = (ground.folder / "jobset").absolute()
        folder.mkdir(exist_ok=True)
        for name in ("crt", "key"):
            shutil.copyfile(ground.paths.pki / f"apiserver.{name}", folder / f"tls.{name}")
        (folder / "tls.key").chmod(0o600)
        webhook = {"host": HOST, "port": WEBHOOK_PORT, "certDir": str(folder)}
        configuration = folder / "configuration.yaml"
        configuration.write_text(json.dumps({**CONFIGURATION, "webhook": webhook}))
        asked = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{READER}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = ground.api.call("POST", asked, request)["status"]["token"]
        return Command(
            [str(program), f"--config={configuration}"],
            f"https://{HOST}:{METRICS_PORT}/metrics",
            {"KUBECONFIG": str(ground.paths.kubeconfig)},
            {"Authorization": f"Bearer {token}"},
        )

    @override
    def load(self, fleet: Fleet) -> list[Post]:
        """JobSets. A failed worker fails its Job, and the set recreates all of its Jobs."""
        return [(JOBS, _job_set(name, fleet.workers)) for name in fleet.names()]

    @override
    def says(self, job: Mapping[str, Any], workers: int) -> bool:
        """Its only Job is ready, which it is with all of its pods."""
        statuses = (job.get("status") or {}).get("replicatedJobsStatus") or []
        return [status.get("ready") for status in statuses] == [1]


def _job_set(name: str, workers: int) -> Json:
    template = pod_template()
    template["spec"]["restartPolicy"] = "Never"
    job = {
        "parallelism": workers,
        "completions": workers,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": template,
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": []},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "failurePolicy": {"maxRestarts": 10},
            "replicatedJobs": [
                {"name": "worker", "groupName": "default", "replicas": 1, "template": {"spec": job}},
            ],
        },
    }


def _role() -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": READER},
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    }


def _binding() -> Json:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": READER},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": READER},
        "subjects": [{"kind": "ServiceAccount", "name": READER, "namespace": NAMESPACE}],
    }
