"""The size of a group in workers and in ranks, and the check that `spec.parallelism` divides these. Pure.

The API server rejects numbers that do not fit, but it cannot count the accelerators behind `processesPerReplica: auto`.
"""

from dataclasses import dataclass

from trainyard.api.recovery import Agent
from trainyard.api.spec import RANKS_FIT, Framework, TrainingJobSpec
from trainyard.domain.state.accelerators import count_processes


@dataclass(frozen=True, slots=True)
class GroupSize:
    """The size of a job's group at one moment, in workers. `plan` computes it once."""

    requested: int
    """`spec.replicas`."""
    allowed: int
    """The size that the job may have and that is nearest to `requested`: elastic and parallelism exclude others."""
    current: int
    """The size for which the current attempt was created."""
    desired: int
    """The size that the group must have now. Where `current` is another one, the group is resized."""
    target: int
    """The size once the joining workers are ready. It equals `current` while no worker may join yet."""
    created_for: tuple[int, ...] = ()
    """The sizes for which the current attempt, or each of its pods, was created; 0: its annotation was removed by hand."""
    limited_because: str = ""
    """Why the group has an allowed size in place of the requested one; empty where it has the requested one."""
    invalid_because: str = ""
    """Why the requested size cannot be followed at all; empty where it can."""

    @classmethod
    def following(cls, requested: int, created_for: tuple[int, ...] = ()) -> "GroupSize":
        """Return the size of a group that gets all workers that are requested, at once."""
        current = next(filter(None, created_for), requested)
        return cls(requested, requested, current, desired=requested, target=requested, created_for=created_for)

    @property
    def scale_up_pending(self) -> bool:
        """Whether the group keeps its size until more workers are ready to join."""
        return self.desired == self.current < self.allowed

    @property
    def resized_from(self) -> int | None:
        """The size from which the group has to be resized to `desired`; None where it has that size."""
        return next((size for size in self.created_for if size not in {0, self.desired}), None)


def processes(spec: TrainingJobSpec) -> int:
    """Return the training processes of a worker: the number in the spec, else the accelerators of the main container, else 1."""
    if isinstance(spec.processes_per_replica, int):
        return spec.processes_per_replica
    return count_processes(spec).processes


def uses_torchrun_rendezvous(spec: TrainingJobSpec) -> bool:
    """Return whether torchrun forms a new group by itself when workers join or exit: an elastic job without the agent."""
    return spec.elastic is not None and spec.framework is Framework.TORCH and spec.recovery.agent is Agent.NONE


def indivisible(spec: TrainingJobSpec, workers: int) -> str:
    """Return why the ranks of so many workers cannot be divided into whole copies of the model; empty where they can."""
    split = spec.parallelism
    if split is None or (workers * (each := processes(spec))) % split.ranks == 0:
        return ""
    one_copy = f"{split.tensor} x {split.pipeline} x {split.context} is {split.ranks}"
    return f"{RANKS_FIT}: {workers} x {each} is {workers * each}, and {one_copy}"
