"""Identify this process of a training by the variables that launchers set. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainyard_torch.checkpoint.lineage import JobAttempt
from trainyard_torch.environment_variables import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_WORLD_SIZE = 10**7


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The rank and world size of this process, in the group and within its pod or machine.

    Attributes:
        rank: the rank among all processes, from 0 on.
        world_size: the number of all processes.
        local_rank: the rank among the processes of the same pod or machine.
        local_world_size: the number of those.
        launched: whether a launcher has set the variables. If not, this is the only process.
        supervised: whether trainyard-agent has started this process itself, and receives its progress.
        job_attempt: the job and the attempt of this process.

    Raises:
        ValueError: a number is out of range.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    launched: bool = False
    supervised: bool = False
    job_attempt: JobAttempt = field(default_factory=JobAttempt)

    def __post_init__(self) -> None:
        for name, value, below in (
            ("WORLD_SIZE", self.world_size - 1, MAX_WORLD_SIZE),
            ("RANK", self.rank, self.world_size),
            ("LOCAL_WORLD_SIZE", self.local_world_size - 1, self.world_size),
            ("LOCAL_RANK", self.local_rank, self.local_world_size),
        ):
            if not 0 <= value < below:
                raise ValueError(
                    f"{name} does not fit: RANK {self.rank} of WORLD_SIZE {self.world_size}, LOCAL_RANK {self.local_rank} of "
                    f"LOCAL_WORLD_SIZE {self.local_world_size}; leave these variables to the launcher"
                )

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ProcessInfo:
        """Return the values that trainyard-agent, torchrun or another launcher has set. Without RANK and WORLD_SIZE, this process is alone.

        Raises:
            ValueError: a variable is not a number, contradicts the others, or is missing.
        """
        job_attempt = JobAttempt.of(environ)
        given = [name for name in ("RANK", "WORLD_SIZE") if environ.get(name)]
        if not given:
            return cls(job_attempt=job_attempt)
        if len(given) == 1:
            raise ValueError(
                f"{given[0]} is set without {'WORLD_SIZE' if given == ['RANK'] else 'RANK'}: set both, or neither"
            )
        world_size = whole_number(environ, "WORLD_SIZE", 1)
        return cls(
            rank=whole_number(environ, "RANK", 0),
            world_size=world_size,
            local_rank=whole_number(environ, "LOCAL_RANK", 0),
            local_world_size=whole_number(environ, "LOCAL_WORLD_SIZE", 1),
            launched=True,
            supervised=bool(environ.get("TRAINYARD_PROGRESS_FILE")),
            job_attempt=job_attempt,
        )
