"""The operators of Ray and MPI, outside the cluster, as the scale benchmark runs its peers."""

from typing import Final

from typing_extensions import override

from dev.benchmarks.scale import peers
from dev.benchmarks.scale.fleet import NAMESPACE
from dev.benchmarks.scale.systems.base import HOST, METRICS_PORT, PROBE_PORT, Command, Ground, Installable

METRICS: Final = f"http://{HOST}:{METRICS_PORT}/metrics"
REQUESTS: Final = ("1000", "2000")
"""Requests per second to the API server, and in a burst: raised limits, so that they delay no recovery."""


class KubeRay(Installable):
    """KubeRay's operator. It reaches Ray's dashboards through the API server, since it runs outside the cluster."""

    name = "kuberay"

    @override
    def install(self, ground: Ground) -> None:
        """Create the CRDs: its manager watches all three kinds."""
        folder = peers.build(peers.KUBERAY, ground.paths)
        for kind in ("rayclusters", "rayjobs", "rayservices"):
            ground.define((folder / f"ray.io_{kind}.yaml").read_bytes())

    @override
    def command(self, ground: Ground) -> Command:
        """Return its command, without leader election."""
        rate, burst = REQUESTS
        flags = (
            "--enable-leader-election=false",
            "--use-kubernetes-proxy",
            "--reconcile-concurrency=16",
            f"--watch-namespace={NAMESPACE}",
            f"--metrics-addr={HOST}:{METRICS_PORT}",
            f"--health-probe-bind-address={HOST}:{PROBE_PORT}",
            f"--qps={rate}",
            f"--burst={burst}",
        )
        program = peers.build(peers.KUBERAY, ground.paths) / "kuberay"
        return Command([str(program), *flags], METRICS, {"KUBECONFIG": str(ground.paths.kubeconfig)})


class MpiOperator(Installable):
    """Kubeflow's MPI operator, for MPIJobs of version 2. Its leader election cannot be turned off."""

    name = "mpi-operator"

    @override
    def install(self, ground: Ground) -> None:
        """Create the CRD."""
        crd = peers.build(peers.MPI_OPERATOR, ground.paths) / "kubeflow.org_mpijobs.yaml"
        ground.define(crd.read_bytes())

    @override
    def command(self, ground: Ground) -> Command:
        """Return its command."""
        rate, burst = REQUESTS
        flags = (
            f"--kubeConfig={ground.paths.kubeconfig}",
            f"--namespace={NAMESPACE}",
            f"--lock-namespace={NAMESPACE}",
            f"--monitoring-port={METRICS_PORT}",
            "--threadiness=16",
            f"--kube-api-qps={rate}",
            f"--kube-api-burst={burst}",
        )
        program = peers.build(peers.MPI_OPERATOR, ground.paths) / "mpi-operator"
        return Command([str(program), *flags], METRICS, ready="mpi_operator_is_leader 1")
