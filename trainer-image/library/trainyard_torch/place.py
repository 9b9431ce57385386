"""Which process of a training this is, by the variables that launchers set. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainyard_torch.checkpoint.lineage import Incarnation
from trainyard_torch.variables import whole

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 10**7


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands.

    Attributes:
        rank: among all, from 0 on.
        world: how many there are.
        local_rank: among those of the same pod or machine.
        local_world: how many those are.
        launched: whether a launcher has said so; else there is this process alone.
        supervised: whether trainyard-agent itself has started it, so that it is told its steps.
        who: which start of which job it is.

    Raises:
        ValueError: a number is out of its range.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    launched: bool = False
    supervised: bool = False
    who: Incarnation = field(default_factory=Incarnation)

    def __post_init__(self) -> None:
        for name, value, below in (
            ("WORLD_SIZE", self.world - 1, MOST),
            ("RANK", self.rank, self.world),
            ("LOCAL_WORLD_SIZE", self.local_world - 1, self.world),
            ("LOCAL_RANK", self.local_rank, self.local_world),
        ):
            if not 0 <= value < below:
                raise ValueError(
                    f"{name} does not fit: RANK {self.rank} of WORLD_SIZE {self.world}, LOCAL_RANK {self.local_rank} of "
                    f"LOCAL_WORLD_SIZE {self.local_world}; leave these variables to the launcher"
                )

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Place:
        """What trainyard-agent, torchrun or another launcher has set; without RANK and WORLD_SIZE, this process alone.

        Raises:
            ValueError: a variable is no number, does not fit the others, or is missing beside others.
        """
        who = Incarnation.of(environ)
        given = [name for name in ("RANK", "WORLD_SIZE") if environ.get(name)]
        if not given:
            return cls(who=who)
        if len(given) == 1:
            raise ValueError(
                f"{given[0]} is set without {'WORLD_SIZE' if given == ['RANK'] else 'RANK'}: set both, or neither"
            )
        world = whole(environ, "WORLD_SIZE", 1)
        return cls(
            rank=whole(environ, "RANK", 0),
            world=world,
            local_rank=whole(environ, "LOCAL_RANK", 0),
            local_world=whole(environ, "LOCAL_WORLD_SIZE", 1),
            launched=True,
            supervised=bool(environ.get("TRAINYARD_PROGRESS_FILE")),
            who=who,
        )
