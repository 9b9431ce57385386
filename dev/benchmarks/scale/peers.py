"""Builds the peers from their pinned Go modules, as the local cluster's own programs are built."""

from pathlib import Path
from typing import Final

from dev.benchmarks.scale.api import BenchmarkError
from dev.localcluster import tools
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.paths import Paths

FOLDER: Final = Path(__file__).parents[1] / "peers"
TRAINING_OPERATOR: Final = tools.Module(
    "training-operator",
    {"training-operator.v1": "github.com/kubeflow/training-operator/cmd/training-operator.v1"},
    "100 s",
    root=FOLDER,
    files=tuple(
        ("github.com/kubeflow/training-operator", f"manifests/base/crds/kubeflow.org_{kind}.yaml")
        for kind in ("pytorchjobs", "tfjobs", "jaxjobs", "xgboostjobs")
    ),
)
JOBSET: Final = tools.Module(
    "jobset",
    {"jobset": "sigs.k8s.io/jobset"},
    "100 s",
    root=FOLDER,
    files=(("sigs.k8s.io/jobset", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),),
)
KUBERAY: Final = tools.Module(
    "kuberay",
    {"kuberay": "github.com/ray-project/kuberay/ray-operator"},
    "100 s",
    root=FOLDER,
    files=tuple(
        ("github.com/ray-project/kuberay/ray-operator", f"config/crd/bases/ray.io_{kind}.yaml")
        for kind in ("rayclusters", "rayjobs", "rayservices")
    ),
)
MPI_OPERATOR: Final = tools.Module(
    "mpi-operator",
    {"mpi-operator": "github.com/kubeflow/mpi-operator/cmd/mpi-operator"},
    "100 s",
    root=FOLDER,
    files=(("github.com/kubeflow/mpi-operator", "manifests/base/kubeflow.org_mpijobs.yaml"),),
)


def build(module: tools.Module, paths: Paths) -> Path:
    """The folder of the peer's program and CRD.

    Raises:
        BenchmarkError: it cannot be built.
    """
    try:
        return tools.ensure_module(module, paths)
    except LocalClusterError as error:
        raise BenchmarkError(str(error)) from error
