"""Trainyard, run as its chart runs it."""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from typing_extensions import override

from dev.benchmarks.scale.fleet import NAMESPACE, Fleet
from dev.benchmarks.scale.systems.base import (
    HOST,
    METRICS_PORT,
    Command,
    Ground,
    Json,
    Post,
    System,
    pod_template,
)
from trainyard.api.constants import GROUP, KIND, PLURAL, VERSION
from trainyard.api.crd import custom_resource_definition

JOBS: Final = f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{PLURAL}"


class Trainyard(System):
    """The operator of this repository."""

    name = "trainyard"
    jobs_path = JOBS
    own_writes = frozenset({"POST pods", "POST services", "PUT trainingjobs/status"})
    other_writes: ClassVar[Mapping[str, str]] = {"DELETE": "DELETE pods", "POST": "POST events", "PUT": "PUT leases"}

    @override
    def install(self, ground: Ground) -> None:
        """The CRD."""
        ground.define(custom_resource_definition())

    @override
    def command(self, ground: Ground) -> Command:
        """The console script's module, with the chart's defaults."""
        environment = {
            "KUBECONFIG": str(ground.paths.kubeconfig),
            "TRAINYARD_HTTP_HOST": HOST,
            "TRAINYARD_HTTP_PORT": str(METRICS_PORT),
            "TRAINYARD_HEALTH_PORT": "0",
            "TRAINYARD_INSTANCE": "bench",
            "TRAINYARD_LEASE_NAMESPACE": NAMESPACE,
            "PYTHONUNBUFFERED": "1",
        }
        argv = [sys.executable, "-m", "trainyard.controller"]
        return Command(argv, f"http://{HOST}:{METRICS_PORT}/metrics", environment)

    @override
    def load(self, fleet: Fleet) -> list[Post]:
        """TrainingJobs."""
        return [(JOBS, training_job(name, fleet.workers)) for name in fleet.names()]

    @override
    def says(self, job: Mapping[str, Any], workers: int) -> bool:
        """All are ready, and the job's word is Running."""
        status = job.get("status") or {}
        return status.get("phase") == "Running" and status.get("readyReplicas") == workers


def training_job(name: str, workers: int) -> Json:
    """Return a TrainingJob."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": workers, "template": pod_template()},
    }
