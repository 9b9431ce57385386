"""The measured systems. Each runs the same training with one to six workers, on three nodes with two slots each."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import override

from dev.benchmarks.recovery import systems
from dev.benchmarks.recovery.systems import Job, System
from dev.benchmarks.scale.systems.base import Json

LARGEST: Final = 6
GPUS: Final = 4
"""GPUs per worker; a node has eight."""
PATIENCE_SECONDS: Final = 5
"""Seconds that each system waits for unschedulable or for more workers, if it can be configured."""


class Elastic(ABC):
    """One operator with scalable jobs."""

    name: str
    operator: str
    """Name of the operator in `dev.benchmarks.recovery.operators`."""
    fixed: System
    """The same system with groups of a fixed size."""

    @abstractmethod
    def manifest(self, job: Job, workers: int) -> Json:
        """Return the manifest of the job."""

    @abstractmethod
    def scaled(self, workers: int) -> Json:
        """Return the patch that requests this number of workers."""


class Trainyard(Elastic):
    """This operator. Its agent coordinates a last step with the ranks, and holds joining workers."""

    name = operator = "trainyard"
    fixed = systems.SYSTEMS["trainyard"]

    @override
    def manifest(self, job: Job, workers: int) -> Json:
        """Return a TrainingJob. The program calls must_stop, as users' programs do."""
        made = self.fixed.manifest(job)
        spec = made["spec"]
        spec |= {"replicas": workers, "processesPerReplica": 1}
        spec["elastic"] = {
            "maxReplicas": LARGEST,
            "shrinkAfterSeconds": PATIENCE_SECONDS,
            "growAfterSeconds": PATIENCE_SECONDS,
        }
        main = _placed(spec["template"])
        main["env"].append({"name": "BENCH_AGREES", "value": "1"})
        return made

    @override
    def scaled(self, workers: int) -> Json:
        return {"spec": {"replicas": workers}}


class TrainingOperator(Elastic):
    """Kubeflow's training-operator with an elastic policy: torchrun runs a new rendezvous. `last_call`: seconds that it waits for more workers."""

    operator = "training-operator"
    fixed = systems.SYSTEMS["training-operator"]

    def __init__(self, name: str, last_call: int | None = None) -> None:
        self.name, self._last_call = name, last_call

    @override
    def manifest(self, job: Job, workers: int) -> Json:
        """Return a PyTorchJob."""
        made = self.fixed.manifest(job)
        spec = made["spec"]
        policy: dict[str, Any] = spec["elasticPolicy"]
        policy |= {"minReplicas": 1, "maxReplicas": LARGEST}
        if self._last_call is not None:
            policy["rdzvConf"] = [{"key": "last_call_timeout", "value": str(self._last_call)}]
        worker = spec["pytorchReplicaSpecs"]["Worker"]
        worker["replicas"] = workers
        _placed(worker["template"])
        return made

    @override
    def scaled(self, workers: int) -> Json:
        return {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}}}


SYSTEMS: Final[Mapping[str, Elastic]] = {
    system.name: system
    for system in (
        Trainyard(),
        TrainingOperator("training-operator"),
        TrainingOperator("training-operator-5s", PATIENCE_SECONDS),
    )
}


def _placed(template: Json) -> Json:
    """Limit the pods to two per node, and return the container."""
    main: Json = template["spec"]["containers"][0]
    main["resources"]["limits"] = {"nvidia.com/gpu": GPUS}
    return main
