"""The measured frameworks: program, image, faults, and both systems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dev.benchmarks.frameworks.faults import delete_pod_of, fault, kill, of_ranks
from dev.benchmarks.frameworks.peers import KubeRay, MpiOperator
from dev.benchmarks.frameworks.systems import RANKS, KubeflowJob, MpiJob, Ours, Pods, RayJob
from dev.benchmarks.recovery.faults import Fault
from dev.benchmarks.recovery.systems import PROGRAM, System
from dev.benchmarks.scale.systems.base import Installable
from dev.benchmarks.scale.systems.training_operator import TUNING, TrainingOperator
from dev.localcluster.images import IMAGES


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework under both systems."""

    program: str
    """A file of `programs`."""
    image: str
    """A name of `dev.localcluster.images`."""
    ours: System
    peer: System
    operator: Installable
    """The operator of the peer."""
    faults: Sequence[Fault]

    def systems(self) -> dict[str, tuple[System, Installable | None]]:
        """Return each system by name, with its operator; None for Trainyard, which is installed by its chart."""
        return {self.ours.name: (self.ours, None), self.peer.name: (self.peer, self.operator)}


def _tensorflow() -> Framework:
    pods = Pods(IMAGES["frameworks-tensorflow"].reference)
    return Framework(
        "tensorflow_steps.py",
        "frameworks-tensorflow",
        Ours("tensorflow", pods, workers=1, roles=["chief"]),
        KubeflowJob("TFJob", {"Chief": 1, "Worker": 1}, pods),
        TrainingOperator("training-operator", TUNING, "tfjob"),
        of_ranks("tensorflow", first="the chief", other="a worker"),
    )


def _ray() -> Framework:
    pods = Pods(IMAGES["peers-ray"].reference, env={"RAY_AUTH_MODE": "disabled"})
    return Framework(
        "ray_steps.py",
        "peers-ray",
        Ours("ray", pods, roles=["head"]),
        RayJob(pods, "2.60.0"),
        KubeRay(),
        (
            fault(
                "ray",
                "kill",
                "the raylet of a worker is killed",
                like="kill",
                rank=1,
                inject=kill("raylet", of_target=True),
            ),
            fault("ray", "pod", "the pod of a worker is deleted", like="pod", rank=1),
            fault("ray", "first-kill", "the GCS of the head is killed", like="kill", rank=0, inject=kill("gcs_server")),
            fault(
                "ray",
                "first-pod",
                "the pod of the head is deleted",
                like="pod",
                rank=0,
                inject=delete_pod_of("gcs_server"),
            ),
        ),
    )


def _mpi() -> Framework:
    command = ["mpirun", "-np", str(RANKS), "python3", "-m", "mpi4py", *PROGRAM]
    pods = Pods(IMAGES["peers-mpi"].reference, command)
    return Framework(
        "mpi_steps.py",
        "peers-mpi",
        Ours("mpi", pods),
        MpiJob(pods),
        MpiOperator(),
        (
            fault("mpi", "kill", "the process of a rank is killed", like="kill", rank=1),
            fault("mpi", "pod", "the pod of a worker is deleted", like="pod", rank=1),
            fault("mpi", "first-kill", "the launcher is killed", like="kill", rank=0, inject=kill("prterun")),
            fault(
                "mpi",
                "first-pod",
                "the pod of the launcher is deleted",
                like="pod",
                rank=0,
                inject=delete_pod_of("prterun"),
            ),
        ),
    )


def _xgboost() -> Framework:
    pods = Pods(IMAGES["frameworks"].reference)
    return Framework(
        "xgboost_steps.py",
        "frameworks",
        Ours("xgboost", pods),
        KubeflowJob("XGBoostJob", {"Master": 1, "Worker": 1}, pods),
        TrainingOperator("training-operator", TUNING, "xgboostjob"),
        of_ranks("xgboost", first="rank 0, with the tracker,", other="a worker"),
    )


def _jax() -> Framework:
    pods = Pods(IMAGES["frameworks-jax"].reference)
    return Framework(
        "jax_steps.py",
        "frameworks-jax",
        Ours("jax", pods),
        KubeflowJob("JAXJob", {"Worker": 2}, pods),
        TrainingOperator("training-operator", TUNING, "jaxjob"),
        of_ranks("jax", first="process 0, with the coordinator,", other="a worker"),
    )


FRAMEWORKS: Final[Mapping[str, Framework]] = {
    "tensorflow": _tensorflow(),
    "ray": _ray(),
    "mpi": _mpi(),
    "xgboost": _xgboost(),
    "jax": _jax(),
}
FAULTS: Final[Mapping[str, Fault]] = {each.name: each for framework in FRAMEWORKS.values() for each in framework.faults}
