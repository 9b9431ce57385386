"""When checkpoints are made, where they go, and which stay. Pure: the time is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from trainyard_torch.checkpoint.interval import Due
from trainyard_torch.checkpoint.lineage import Keep


class Tier(IntEnum):
    """Where a checkpoint goes: into the memory of the nodes alone, or into the store too."""

    MEMORY = 1
    STORE = 2


@dataclass(frozen=True)
class Plan:
    """When checkpoints are made, and which stay.

    Attributes:
        store: when one is stored.
        memory: when one is kept in memory; None: never. What is stored is kept there too.
        keep: which ones stay in the store; in memory it is the last.
        folder: on a file system in memory that outlives a process. In a pod it counts against the memory limit.
    """

    store: Due = field(default_factory=Due)
    memory: Due | None = None
    keep: Keep = field(default_factory=Keep)
    folder: str = "/dev/shm"  # noqa: S108 - a file system in memory


class Pace:
    """What is due, from what was made.

    Args:
        plan: when they are to be made.
        now: seconds of a clock that never goes back, as in all methods.

    Attributes:
        stall: seconds for which the training stood still for the last checkpoint; 0 before the first.
        step: that of the last one; 0 before the first.
    """

    def __init__(self, plan: Plan, now: float) -> None:
        self._rules = {Tier.STORE: plan.store, Tier.MEMORY: plan.memory}
        self._last = dict.fromkeys(Tier, now)
        self._began, self._failures = now, 0
        self.stall, self.step = 0.0, 0

    def began(self, seconds: float, failures: int, now: float) -> None:
        """The training began so many seconds ago, and has begun again so many times since."""
        self._began, self._failures = now - seconds, failures

    def made(self, tier: Tier, step: int, *, began: float, now: float) -> None:
        """A checkpoint of this step was made; the training stood still from `began` on."""
        self.stall = now - began
        for each in Tier:
            if each <= tier:
                self._last[each] = now
        self.step = step

    def since(self, now: float) -> float:
        """Seconds since the last one was made, or since the beginning."""
        return now - self._last[Tier.MEMORY]

    def at(self, step: int) -> Tier | None:
        """What is due after this step by its number: the same answer wherever it is asked."""
        return next((tier for tier, due in self._rules.items() if due and due.at(step)), None)

    def by(self, now: float) -> Tier | None:
        """What is due by the time."""
        for tier, due in self._rules.items():
            elapsed, age = now - self._last[tier], now - self._began
            if due and due.by(elapsed, stall=self.stall, age=age, failures=self._failures):
                return tier
        return None
