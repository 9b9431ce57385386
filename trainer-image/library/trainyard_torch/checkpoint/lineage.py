"""Decide which checkpoints an attempt may resume from, and which are kept. Pure.

Before an attempt writes anything, it records which checkpoint it resumes from: its claim. From then on no earlier attempt can add to the
history. A stale process, for example on a node that was presumed dead, may still commit. But its step is after the claimed base, and so
does not count. This needs no lock, and no guarantee that object stores do not give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard_torch.environment_variables import whole_number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from trainyard_torch.checkpoint.manifest import Name


@dataclass(frozen=True)
class JobAttempt:
    """The job and attempt of this process: the TrainingJob's UID and its attempt. Without an operator: `""` and 0."""

    job: str = ""
    attempt: int = 0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> JobAttempt:
        """Return the values of the operator's variables.

        Raises:
            ValueError: TRAINYARD_ATTEMPT is not a number.
        """
        return cls(environ.get("TRAINYARD_JOB_UID", ""), whole_number(environ, "TRAINYARD_ATTEMPT", 0))


@dataclass(frozen=True)
class Claim:
    """The claim of an attempt: from now on it alone writes here.

    Attributes:
        attempt: the number of the attempt in this store, at least 1. Several jobs may use the store, one after the other.
        base: the checkpoint that it resumed from; None if it started at step 0.
        mark: a unique text.
        job_attempt: the job and attempt that made it.
        time: its start in seconds since 1970; 0 if unknown.
        legible: whether its base is known. A claim that was only started, or cannot be read, has none.
    """

    attempt: int
    base: Name | None
    mark: str = ""
    job_attempt: JobAttempt = JobAttempt()
    time: float = 0.0
    legible: bool = True

    def is_before(self, other: JobAttempt) -> bool:
        """Return whether that claim is of an earlier attempt of the same job, whose process may still run."""
        return not (
            self.job_attempt.job and self.job_attempt.job == other.job and self.job_attempt.attempt > other.attempt
        )


def past(claims: Iterable[Claim], job_attempt: JobAttempt, now: float) -> tuple[float, int]:
    """Return the seconds since the job's first start and its number of restarts. `claims` includes the one of `job_attempt`."""
    began = [claim.time for claim in claims if claim.job_attempt.job == job_attempt.job and 0 < claim.time <= now]
    return (now - min(began), len(began) - 1) if began else (0.0, 0)


def usable(names: Iterable[Name], claims: Collection[Claim], attempt: int) -> list[Name]:
    """Return the checkpoints that an attempt may resume from, the best first.

    `claims`: those of all attempts so far. The best checkpoint has the most steps; of two with the same step, that of the later attempt is better.
    """
    # The base of an illegible claim is unknown. Ignoring it loses nothing of earlier attempts.
    known = (claim for claim in claims if claim.attempt < attempt and claim.legible)
    later = {claim.attempt: claim.base.step if claim.base else -1 for claim in known}

    def counts(name: Name) -> bool:
        return name.attempt <= attempt and all(
            name.step <= step for other, step in later.items() if other > name.attempt
        )

    return sorted(filter(counts, names), reverse=True)


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept.

    Attributes:
        last: the number of newest ones, at least 1.
        best: the number of those with the best value of `metric`.
        metric: the name of a number in the manifests.
        greater_is_better: whether a greater value is better.

    Raises:
        ValueError: a number is out of range, or `best` has no metric.
    """

    last: int = 2
    best: int = 0
    metric: str = ""
    greater_is_better: bool = False

    def __post_init__(self) -> None:
        if self.last < 1 or self.best < 0:
            raise ValueError(f"last must be from 1 on and best from 0 on, and they are {self.last} and {self.best}")
        if self.best and not self.metric:
            raise ValueError("best needs metric, the name of a number that is given with each checkpoint")

    def superfluous(self, usable: list[Name], metrics: Mapping[Name, Mapping[str, float]]) -> list[Name]:
        """Return the usable checkpoints, newest first, that are not kept. One without the metric does not rank among the best."""
        valued = [(metrics[name][self.metric], name) for name in usable if self.metric in metrics.get(name, {})]
        # Of equal values the newer is better; NaN is worse than all.
        valued = [(value, name) for value, name in valued if isinstance(value, int | float) and not math.isnan(value)]
        ranked = sorted(valued, key=lambda pair: (-pair[0] if self.greater_is_better else pair[0], -pair[1].step))
        kept = {*usable[: self.last], *(name for _, name in ranked[: self.best])}
        return [name for name in usable if name not in kept]
