"""Measure how long the steps of the ranks take, and find a rank that hangs: one without a step for much longer. Pure; the time is given.

The collectives' own timeout is ten minutes, and a process that waits in one is alive by any other sign.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from statistics import median
from typing import NamedTuple, Optional

from trainyard_agent.report import RankState
from trainyard_agent.report_file import MIN_STEPS

MIN_LIMIT_SECONDS = 30.0
"""Without a step, which are never too long."""
MIN_GPU_LIMIT_SECONDS = 120.0
"""The same on GPUs: the first collective of a group, a compilation that is not reported, or a slow read takes longer there."""
USUAL_STEPS = 5
"""How many usual steps one step may take."""
ALLOWANCES: Mapping[str, float] = {"start": 1800.0, "compile": 1800.0, "evaluate": 1800.0, "checkpoint": 600.0}
"""Seconds that the phases between steps may take, and a step of which the usual time is not known yet."""
REMEMBERED_STEPS = 32


class Hang(NamedTuple):
    """A rank that makes no step any more."""

    rank: int
    step: Optional[int]  # noqa: UP045 - Python 3.9
    """The last that it completed."""
    phase: str
    seconds: float
    """For how long it has made none."""
    usual: Optional[float]  # noqa: UP045 - Python 3.9
    """Seconds that a step usually takes, where that is known."""


class Usual(NamedTuple):
    """What a rank's steps usually take, in seconds; None where that is not known."""

    step: Optional[float] = None  # noqa: UP045 - Python 3.9
    """From one to the next."""
    compute: Optional[float] = None  # noqa: UP045 - Python 3.9
    """In which the rank works itself, where its program reports that."""


class Watch:
    """All ranks of this worker. Those that never report anything are not judged."""

    def __init__(self, limit: float | None = None, least: float = MIN_LIMIT_SECONDS) -> None:
        """`limit`: seconds that a step may take; None: five times what steps usually take, and `least` seconds at least."""
        self.limit, self._least = limit, least
        self._ranks: dict[int, _Rank] = {}
        self._updated_at: float | None = None

    @property
    def interval(self) -> float:
        """How often to call `update`, in seconds."""
        return 1.0 if self.limit is None else min(1.0, self.limit / 20)

    @property
    def usual(self) -> dict[int, Usual]:
        """What the steps of each rank usually take."""
        return {rank: Usual(each.usual, _median(each.compute)) for rank, each in self._ranks.items()}

    def update(self, states: Mapping[int, RankState], now: float) -> Hang | None:
        """Return the rank that hangs, if one does: of several the one furthest behind, then the one without a step for longest."""
        before, self._updated_at = self._updated_at, now
        if before is not None and now - before > 10 * self.interval:
            # This process itself was stopped, and so were the ranks, perhaps: for how long each is not known.
            for each in self._ranks.values():
                each.since += now - before
        for rank, state in states.items():
            if rank in self._ranks:
                self._ranks[rank].update(state, now)
            else:
                self._ranks[rank] = _Rank(state, now)
        late = [
            Hang(rank, each.step, each.phase, now - each.since, each.usual)
            for rank, each in self._ranks.items()
            if rank in states and now - each.since > each.patience(self.limit, self._least)
        ]
        return min(late, key=lambda hang: (-1 if hang.step is None else hang.step, -hang.seconds), default=None)


class _Rank:
    def __init__(self, state: RankState, now: float) -> None:
        self.step, self.phase, self._total = state.step, state.phase, state.total
        self.since = now
        self._step_started_at = now if state.phase == "train" else None
        """When the current step started, if nothing else was done since."""
        self._step_seconds: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._report_seconds: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        """From report to report: a program may report each tenth step only."""
        self.compute: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        """Of the last steps that were seen: where many are made between two looks, of each last one."""

    @property
    def usual(self) -> float | None:
        return _median(self._step_seconds)

    def update(self, state: RankState, now: float) -> None:
        step = self.step if state.step is None else state.step
        self._total = state.total or self._total
        if (step, state.phase) == (self.step, self.phase):
            return
        started = self._step_started_at
        if step is not None and self.step is not None and step > self.step and started is not None:
            steps = step - self.step
            self._step_seconds.extend([(now - started) / steps] * min(steps, REMEMBERED_STEPS))
            self._report_seconds.append(now - started)
        if step != self.step and state.compute_seconds is not None and 0 < state.compute_seconds < math.inf:
            self.compute.append(state.compute_seconds)
        self.step, self.phase, self.since = step, state.phase, now
        self._step_started_at = now if state.phase == "train" else None

    def patience(self, limit: float | None, least: float) -> float:
        """Return the seconds without a report that are not too long."""
        # After the last step there is a model to be evaluated, exported, stored somewhere.
        is_done = self._total is not None and self.step is not None and self.step >= self._total
        if is_done or self.phase != "train":
            return max(limit or 0.0, ALLOWANCES["evaluate" if is_done else self.phase])
        if self.usual is None:
            return max(limit or 0.0, ALLOWANCES["compile"])
        return max(least, USUAL_STEPS * median(self._report_seconds)) if limit is None else limit


def _median(seconds: Collection[float]) -> float | None:
    return median(seconds) if len(seconds) >= MIN_STEPS else None
