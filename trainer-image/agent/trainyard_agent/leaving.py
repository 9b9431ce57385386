"""The ranks of this worker come to an end on which all workers agree. The operator says after which step; here it is seen to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from trainyard_agent.orders import News, Order
from trainyard_agent.ranks import Place
from trainyard_agent.stopping import PATIENCE_SECONDS, SAVED, STOP, Slot
from trainyard_agent.sync import Leave

AGREE_SECONDS = 5.0
"""How long the operator gets to name a step before ranks that are asked to end hear the signal."""
LAST_SHARE = 0.2
"""Of the time that the pod gets to end: left for ranks that the agreement did not bring to their end."""
LOOK_SECONDS = 1.0
"""How often it is looked for ranks that take part."""


class Leaving:
    """Of one attempt. `tell` goes to the operator, `news` is what came of it."""

    def __init__(
        self,
        folder: Path | None,
        where: Place,
        grace: float,
        tell: Callable[[Leave], object],
        news: Callable[[], News],
    ) -> None:
        """`folder`: of the ranks' files, None where no rank can take part. `grace`: seconds that the pod gets to end."""
        self._files = {} if folder is None else {rank: f"{folder}/{rank}{STOP}" for rank in where.ranks}
        self._attempt, self._grace, self._tell, self._news = where.attempt, grace, tell, news
        self._slots: dict[int, Slot] = {}
        self._told = Leave()
        self._takes_part = False
        self._asked_at: float | None = None
        self._held_since = 0.0
        """When they were asked to wait, or told the step."""

    @property
    def interval(self) -> float | None:
        """How often to look, in seconds; None: when something happens."""
        return LOOK_SECONDS if self._files and (not self._takes_part or self._told.leaving) else None

    @property
    def agreed(self) -> bool:
        """Whether it is known after which step the ranks end."""
        return self._told.at is not None

    @property
    def obeyed(self) -> int | None:
        """The step after which a rank of this worker has ended because it was told to; None where none has."""
        with suppress(OSError):
            if self.agreed and any(slot.obeyed for slot in self._slots.values()):
                return self._told.at
        return None

    @property
    def holds(self) -> bool:
        """Whether the ranks make no step for our sake: they wait to be told the last one, or write what they save after it."""
        held = self._grace if self.agreed else PATIENCE_SECONDS if self._told.asked else 0.0
        return time.monotonic() - self._held_since < held

    def expects(self, codes: Iterable[int]) -> bool:
        """Whether these ends of ranks are what was agreed upon, so that the others are left to theirs."""
        return self.agreed and set(codes) <= {0, SAVED}

    def look(self, signals: int) -> bool:
        """Do what there is to do. `signals`: how many have come by which this worker is to end.

        Returns whether the ranks are spared these for now: they end by themselves, at a better moment.
        """
        if not self._takes_part:
            if not self._open():
                return False
            self._takes_part = True
            self._tell(self._told)
        if signals and self._asked_at is None:
            self._asked_at = time.monotonic()
            self._say(self._told._replace(leaving=True))
        news = self._news()
        if news.order is not None and news.order.attempt == self._attempt and news.final is None:
            self._follow(news.order)
        if self._asked_at is None or news.final is not None or signals > 1:
            return False
        patience = self._grace * (1 - LAST_SHARE) if self.agreed else min(AGREE_SECONDS, self._grace / 2)
        return time.monotonic() - self._asked_at < patience

    def close(self) -> None:
        """The attempt is over."""
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()

    def _open(self) -> bool:
        """Whether all ranks take part."""
        for rank, path in self._files.items():
            if rank not in self._slots:
                try:
                    self._slots[rank] = Slot(path)
                except OSError:
                    return False
        return bool(self._slots)

    def _follow(self, order: Order) -> None:
        """Have the ranks wait for the step, tell it to them, or let them go on."""
        told, slots = self._told, self._slots.values()
        try:
            if not order.stops:
                if told.asked:
                    self._say(Leave(told.leaving))
                    for slot in slots:
                        slot.release()
            elif not told.asked:
                self._held_since = time.monotonic()
                self._say(told._replace(asked=True, passed=max(slot.ask() for slot in slots)))
            elif told.passed is not None and order.stop_at is not None and order.stop_at != told.at:
                for slot in slots:
                    slot.settle(order.stop_at)
                self._held_since = time.monotonic()
                self._say(told._replace(at=order.stop_at))
        except OSError:
            # A rank that was stopped, or has spoilt its file, agrees upon nothing.
            self._say(Leave(told.leaving, asked=True))

    def _say(self, told: Leave) -> None:
        if told != self._told:
            self._told = told
            self._tell(told)
