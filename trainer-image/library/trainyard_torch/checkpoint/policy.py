"""Decide when checkpoints are made, where they go, and which are kept. Pure: the time is a parameter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from trainyard_torch.checkpoint.interval import SaveInterval
from trainyard_torch.checkpoint.lineage import Retention

SLACK_SECONDS = 60.0
"""The seconds until all processes know that a checkpoint is abandoned."""
DOUBLINGS = 8
"""After this many consecutive failures, the pause of memory checkpoints no longer doubles."""


class Tier(IntEnum):
    """Where a checkpoint goes: only into the memory of the nodes, or into the store, too."""

    MEMORY = 1
    STORE = 2


@dataclass(frozen=True)
class CheckpointPolicy:
    """When checkpoints are made, which are kept, and the timeouts.

    Attributes:
        store: when a checkpoint is stored.
        memory: when a checkpoint is kept in memory; None: never. Stored checkpoints are kept there, too.
        keep: which checkpoints are kept in the store. Memory keeps the last one.
        memory_dir: a folder on a file system in memory that survives the process. In a pod it counts against the memory limit.
        operation_timeout_seconds: the timeout of one operation of the store (`Store`).
        save_timeout_seconds: the timeout of a whole checkpoint.
        process: whether a process of its own writes the files, and not a thread of the training. It leaves Python's lock to the training,
            and takes memory for a second import of torch (about 0.2 GB for each rank).

    Raises:
        ValueError: a number of seconds is not positive, or a value has another type.
    """

    store: SaveInterval = field(default_factory=SaveInterval)
    memory: SaveInterval | None = None
    keep: Retention = field(default_factory=Retention)
    memory_dir: str = "/dev/shm"  # noqa: S108 - a file system in memory
    operation_timeout_seconds: float = 300.0
    save_timeout_seconds: float = 1800.0
    process: bool = False

    def __post_init__(self) -> None:
        for name in ("operation_timeout_seconds", "save_timeout_seconds"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise ValueError(f"{name} must be a positive number of seconds, got {value!r}")
        for name, kind, example in (
            ("store", SaveInterval, "seconds=600"),
            ("memory", SaveInterval, "seconds=10"),
            ("keep", Retention, "last=3"),
        ):
            value = getattr(self, name)
            if not (isinstance(value, kind) or (name == "memory" and value is None)):
                raise ValueError(f"{name} must be a {kind.__name__}, such as {kind.__name__}({example}), got {value!r}")

    @property
    def give_up_seconds(self) -> float:
        """The most seconds after the copy of the state for which the training waits for a checkpoint."""
        return self.save_timeout_seconds + self.operation_timeout_seconds + SLACK_SECONDS


class SaveSchedule:
    """Tracks which checkpoints were made, and decides what is due.

    Args:
        policy: when checkpoints are made.
        now: seconds of a monotonic clock, as in all methods.

    Attributes:
        stall_seconds: the seconds for which the last checkpoint blocked training; 0 before the first.
        step: the step of the last checkpoint; before the first, the step that training started from.
    """

    def __init__(self, policy: CheckpointPolicy, now: float) -> None:
        self._rules = {Tier.STORE: policy.store, Tier.MEMORY: policy.memory}
        self._last = dict.fromkeys(Tier, now)
        self._began, self._failures = now, 0
        self._before, self._interval = 0, 1
        self._forgotten, self._paused_until = 0, 0
        self.stall_seconds, self.step = 0.0, 0

    def began(self, seconds: float, failures: int, now: float, step: int = 0) -> None:
        """Record that the job started `seconds` ago and has restarted `failures` times, and that this attempt starts at `step`."""
        self._began, self._failures = now - seconds, failures
        self._before = self.step = step

    def made(self, tier: Tier, step: int, *, began: float, now: float) -> None:
        """Record a checkpoint of this step, which blocked training from `began` on."""
        self.stall_seconds = now - began
        for each in Tier:
            if each <= tier:
                self._last[each] = now
        self._before, self.step = self.step, step

    def memory_failed(self) -> None:
        """Record that the last checkpoint could not be stored in memory. A pause in steps follows, so that it is equal on all processes.

        It is twice the distance to the checkpoint before, and doubles with each failure in a row.
        """
        if not self._forgotten:
            self._interval = max(1, self.step - self._before)
        self._forgotten = min(self._forgotten + 1, DOUBLINGS)
        self._paused_until = self.step + self._interval * 2**self._forgotten

    def memory_saved(self) -> None:
        """Record that the last checkpoint is in memory."""
        self._forgotten = 0

    def memory_paused(self, step: int) -> bool:
        """Return whether the pause after a failure excludes a memory checkpoint of this step."""
        return bool(self._forgotten) and step < self._paused_until

    def since(self, now: float) -> float:
        """Return the seconds since the last checkpoint, or since the beginning."""
        return now - self._last[Tier.MEMORY]

    def due_at_step(self, step: int) -> Tier | None:
        """Return what is due after this step by its number: the same answer on all processes."""
        return next((tier for tier, due in self._counting(step) if due.due_at_step(step)), None)

    def due_by_time(self, now: float, step: int = 0) -> Tier | None:
        """Return what is due after this step by the time."""
        for tier, due in self._counting(step):
            elapsed, age = now - self._last[tier], now - self._began
            if due.due_by_time(elapsed, stall=self.stall_seconds, age=age, failures=self._failures):
                return tier
        return None

    def _counting(self, step: int) -> list[tuple[Tier, SaveInterval]]:
        return [
            (tier, due)
            for tier, due in self._rules.items()
            if due and not (tier is Tier.MEMORY and self.memory_paused(step))
        ]
