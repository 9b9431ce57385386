"""The systems that are measured: the same training, whose group may have one worker to six. Six places are there, two on each node."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import override

from dev.benchmarks.recovery import systems
from dev.benchmarks.recovery.systems import Job, System
from dev.benchmarks.scale.systems.base import Json

LARGEST: Final = 6
GPUS: Final = 4
"""Of the eight that a node has."""
PATIENCE_SECONDS: Final = 5
"""How long either waits for workers that lack a place, or for more of them, where it can be told."""


class Elastic(ABC):
    """One operator, with jobs that can be scaled."""

    name: str
    operator: str
    """Which one it is, as `dev.benchmarks.recovery.operators` knows it."""
    fixed: System
    """How it is told of a group of a fixed size."""

    @abstractmethod
    def manifest(self, job: Job, workers: int) -> Json:
        """The job, as it is posted."""

    @abstractmethod
    def scaled(self, workers: int) -> Json:
        """What is patched for another number of workers."""


class Trainyard(Elastic):
    """This operator: its agent agrees with the ranks on a last step, and has joining workers wait."""

    name = operator = "trainyard"
    fixed = systems.SYSTEMS["trainyard"]

    @override
    def manifest(self, job: Job, workers: int) -> Json:
        """A TrainingJob. The program asks whether to stop, as our users' programs do."""
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
    """Kubeflow's training-operator with an elastic policy: torchrun meets anew. `last_call`: how long it then waits for more."""

    operator = "training-operator"
    fixed = systems.SYSTEMS["training-operator"]

    def __init__(self, name: str, last_call: int | None = None) -> None:
        self.name, self._last_call = name, last_call

    @override
    def manifest(self, job: Job, workers: int) -> Json:
        """A PyTorchJob."""
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
    """Two workers to a node, and no more. Returns the container."""
    main: Json = template["spec"]["containers"][0]
    main["resources"]["limits"] = {"nvidia.com/gpu": GPUS}
    return main
