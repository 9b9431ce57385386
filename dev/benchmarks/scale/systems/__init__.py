"""The systems that are measured, by name."""

from typing import Final

from dev.benchmarks.scale.systems.base import System
from dev.benchmarks.scale.systems.jobset import JobSet
from dev.benchmarks.scale.systems.raw import Raw, RawWithJobs
from dev.benchmarks.scale.systems.training_operator import TUNING, TrainingOperator
from dev.benchmarks.scale.systems.trainyard import Trainyard

SYSTEMS: Final[dict[str, System]] = {
    system.name: system
    for system in (
        Trainyard(),
        Raw(),
        RawWithJobs(),
        TrainingOperator("training-operator"),
        TrainingOperator("training-operator-tuned", TUNING),
        JobSet(),
    )
}
