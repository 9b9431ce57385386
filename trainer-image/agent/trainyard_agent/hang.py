"""How long the steps of the ranks take, and whether one hangs: it has made none for longer than that. Pure; the time is given.

The collectives' own time-out is ten minutes, and a process that waits in one is alive by any other sign.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from statistics import median
from typing import NamedTuple, Optional

from trainyard_agent.report import KNOWN, Said

SHORTEST = 30.0
"""Seconds without a step that are never too long."""
FACTOR = 5
"""How many usual steps one may take."""
ALLOWANCES: Mapping[str, float] = {"start": 1800.0, "compile": 1800.0, "evaluate": 1800.0, "checkpoint": 600.0}
"""Seconds that the phases between steps may take, and a step of which it is not known yet what is usual."""
REMEMBERED = 32


class Hang(NamedTuple):
    """A rank that makes no step any more."""

    rank: int
    step: Optional[int]  # noqa: UP045 - Python 3.9
    """The last that it made."""
    phase: str
    seconds: float
    """For how long it has made none."""
    usual: Optional[float]  # noqa: UP045 - Python 3.9
    """Seconds that a step takes as a rule, where that is known."""


class Usual(NamedTuple):
    """What a rank's steps take as a rule, in seconds; None where that is not known."""

    step: Optional[float] = None  # noqa: UP045 - Python 3.9
    """From one to the next."""
    own: Optional[float] = None  # noqa: UP045 - Python 3.9
    """In which it works itself, where its program tells."""


class Watch:
    """All ranks of this worker. Those that never say anything are not judged."""

    def __init__(self, limit: float | None = None) -> None:
        """`limit`: seconds that a step may take; None: five times what steps usually take, and 30 seconds at least."""
        self.limit = limit
        self._ranks: dict[int, _Rank] = {}
        self._looked_at: float | None = None

    @property
    def interval(self) -> float:
        """How often to look, in seconds."""
        return 1.0 if self.limit is None else min(1.0, self.limit / 20)

    @property
    def usual(self) -> dict[int, Usual]:
        """What the steps of each rank take as a rule."""
        return {rank: Usual(each.usual, _median(each.own)) for rank, each in self._ranks.items()}

    def look(self, said: Mapping[int, Said], now: float) -> Hang | None:
        """The rank that hangs, if one does: of several the one that is furthest behind, then the one that has stood still longest."""
        before, self._looked_at = self._looked_at, now
        if before is not None and now - before > 10 * self.interval:
            # This process itself was stopped, and so were the ranks, perhaps: nobody knows for how long each.
            for each in self._ranks.values():
                each.since += now - before
        for rank, words in said.items():
            if rank in self._ranks:
                self._ranks[rank].hear(words, now)
            else:
                self._ranks[rank] = _Rank(words, now)
        late = [
            Hang(rank, each.step, each.phase, now - each.since, each.usual)
            for rank, each in self._ranks.items()
            if rank in said and now - each.since > each.patience(self.limit)
        ]
        return min(late, key=lambda hang: (-1 if hang.step is None else hang.step, -hang.seconds), default=None)


class _Rank:
    def __init__(self, said: Said, now: float) -> None:
        self.step, self.phase, self._total = said.step, said.phase, said.total
        self.since = now
        self._begun = now if said.phase == "train" else None
        """When the step that is under way began, if nothing else was done since."""
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._words: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds from word to word: a program may tell each tenth step alone."""
        self.own: deque[float] = deque(maxlen=REMEMBERED)
        """Of the last steps that were seen: where many are made between two looks, of each last one."""

    @property
    def usual(self) -> float | None:
        return _median(self._took)

    def hear(self, said: Said, now: float) -> None:
        step = self.step if said.step is None else said.step
        self._total = said.total or self._total
        if (step, said.phase) == (self.step, self.phase):
            return
        if step is not None and self.step is not None and step > self.step and self._begun is not None:
            steps = step - self.step
            self._took.extend([(now - self._begun) / steps] * min(steps, REMEMBERED))
            self._words.append(now - self._begun)
        if step != self.step and said.own is not None and 0 < said.own < math.inf:
            self.own.append(said.own)
        self.step, self.phase, self.since = step, said.phase, now
        self._begun = now if said.phase == "train" else None

    def patience(self, limit: float | None) -> float:
        """Seconds without a word that are not too long."""
        # After the last step there is a model to be evaluated, exported, stored somewhere.
        done = self._total is not None and self.step is not None and self.step >= self._total
        if done or self.phase != "train":
            return max(limit or 0.0, ALLOWANCES["evaluate" if done else self.phase])
        if self.usual is None:
            return max(limit or 0.0, ALLOWANCES["compile"])
        return max(SHORTEST, FACTOR * median(self._words)) if limit is None else limit


def _median(seconds: Collection[float]) -> float | None:
    return median(seconds) if len(seconds) >= KNOWN else None
