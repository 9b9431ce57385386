"""Which checkpoints an attempt may go on from, and which are kept. Pure.

Each attempt says, before it writes anything, which checkpoint it goes on from: its claim. From then on no earlier attempt can add to the
history: what a process that was left behind still commits, on a node that was thought dead say, has a step beyond the one that was taken
up, and does not count. So no lock is needed, and none of what storage cannot promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard_torch.variables import whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from trainyard_torch.checkpoint.manifest import Name


@dataclass(frozen=True)
class Incarnation:
    """What the operator says of this start of the training: the job's UID, and its attempt there. Without an operator: `""` and 0."""

    job: str = ""
    attempt: int = 0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Incarnation:
        """What the operator has set.

        Raises:
            ValueError: TRAINYARD_ATTEMPT is no number.
        """
        return cls(environ.get("TRAINYARD_JOB_UID", ""), whole(environ, "TRAINYARD_ATTEMPT", 0))


@dataclass(frozen=True)
class Claim:
    """That an attempt writes here from now on.

    Attributes:
        attempt: as they are counted in this store, from 1 on: several jobs may use it, one after the other.
        base: the checkpoint that it went on from; None where it began anew.
        mark: a word that no other claim has.
        who: which start of which job it is.
        time: when it began, in seconds since 1970; 0 where it does not say.
        legible: whether it says what it went on from: one that has only begun does not, nor one that cannot be read.
    """

    attempt: int
    base: Name | None
    mark: str = ""
    who: Incarnation = Incarnation()
    time: float = 0.0
    legible: bool = True

    def is_before(self, other: Incarnation) -> bool:
        """Whether that is no earlier start of the same job, as a process may be that was left behind."""
        return not (self.who.job and self.who.job == other.job and self.who.attempt > other.attempt)


def past(claims: Iterable[Claim], who: Incarnation, now: float) -> tuple[float, int]:
    """Seconds since a job first began, and how often it has begun again: with the claim of `who` among them."""
    began = [claim.time for claim in claims if claim.who.job == who.job and 0 < claim.time <= now]
    return (now - min(began), len(began) - 1) if began else (0.0, 0)


def usable(names: Iterable[Name], claims: Collection[Claim], attempt: int) -> list[Name]:
    """The checkpoints that this attempt may go on from, the best first.

    `claims`: those of all attempts so far. The best is the one with the most steps; of two with the same, that of the later attempt.
    """
    # Nobody can tell any more what an illegible one went on from: without it, nothing of earlier attempts is lost.
    known = (claim for claim in claims if claim.attempt < attempt and claim.legible)
    later = {claim.attempt: claim.base.step if claim.base else -1 for claim in known}

    def counts(name: Name) -> bool:
        return name.attempt <= attempt and all(
            name.step <= step for other, step in later.items() if other > name.attempt
        )

    return sorted(filter(counts, names), reverse=True)


@dataclass(frozen=True)
class Keep:
    """What stays of the checkpoints.

    Attributes:
        last: how many of the newest, from 1 on.
        best: how many of those with the best value of `metric`.
        metric: the name of a number in the manifests.
        greatest: whether more of it is better.

    Raises:
        ValueError: a number is out of its range, or `best` has no metric.
    """

    last: int = 2
    best: int = 0
    metric: str = ""
    greatest: bool = False

    def __post_init__(self) -> None:
        if self.last < 1 or self.best < 0:
            raise ValueError(f"last must be from 1 on and best from 0 on, and they are {self.last} and {self.best}")
        if self.best and not self.metric:
            raise ValueError("best needs metric, the name of a number that is given with each checkpoint")

    def superfluous(self, usable: list[Name], metrics: Mapping[Name, Mapping[str, float]]) -> list[Name]:
        """Those of the usable checkpoints, the newest first, that are not kept. One without the metric is none of the best."""
        valued = [(metrics[name][self.metric], name) for name in usable if self.metric in metrics.get(name, {})]
        # Of equal ones the newer is the better; what is no number is worse than all.
        valued = [(value, name) for value, name in valued if isinstance(value, int | float) and not math.isnan(value)]
        ranked = sorted(valued, key=lambda pair: (-pair[0] if self.greatest else pair[0], -pair[1].step))
        kept = {*usable[: self.last], *(name for _, name in ranked[: self.best])}
        return [name for name in usable if name not in kept]
