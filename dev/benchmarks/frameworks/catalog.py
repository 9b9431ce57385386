"""The measured frameworks: program, image, faults, and both systems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dev.benchmarks.frameworks.faults import of_ranks
from dev.benchmarks.frameworks.systems import KubeflowJob, Ours, Pods
from dev.benchmarks.recovery.faults import Fault
from dev.benchmarks.recovery.systems import System
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
        of_ranks("tensorflow", first="the chief", others="a worker"),
    )


FRAMEWORKS: Final[Mapping[str, Framework]] = {"tensorflow": _tensorflow()}
FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault for framework in FRAMEWORKS.values() for fault in framework.faults
}
