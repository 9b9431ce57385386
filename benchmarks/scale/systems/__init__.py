"""The systems that are measured, by name."""

from typing import Final

from benchmarks.scale.systems.base import System
from benchmarks.scale.systems.jobset import JobSet
from benchmarks.scale.systems.raw import Raw
from benchmarks.scale.systems.training_operator import TUNING, TrainingOperator
from benchmarks.scale.systems.trainyard import Trainyard

SYSTEMS: Final[dict[str, System]] = {
    system.name: system
    for system in (
        Trainyard(),
        Raw(),
        TrainingOperator("training-operator"),
        TrainingOperator("training-operator-tuned", TUNING),
        JobSet(),
    )
}
