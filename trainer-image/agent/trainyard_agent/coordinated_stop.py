"""Stop the ranks of this worker after a step on which all workers agree. The operator names the step; this carries it out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from trainyard_agent.orders import OperatorView
from trainyard_agent.protocol import Order, StopProgress
from trainyard_agent.ranks import Place
from trainyard_agent.stopping import PATIENCE_SECONDS, SAVED, STOP_SUFFIX, Slot, hold_all

AGREE_SECONDS = 5.0
"""How long the operator gets to name a step before ranks that are asked to exit get the signal."""
RESERVED_SHARE = 0.2
"""Of the grace period: reserved for ranks that did not exit as agreed."""
LOOK_SECONDS = 0.25
"""How often to look for ranks that take part."""


class CoordinatedStop:
    """The coordinated stop of one attempt's ranks."""

    def __init__(
        self,
        folder: Path | None,
        place: Place,
        grace: float,
        report: Callable[[StopProgress], object],
        view: Callable[[], OperatorView],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder`: of the ranks' files, None where no rank can take part. `grace`: the termination grace period in seconds.

        `report` sends the progress of the stop to the operator, `view` returns what is known of the operator.
        """
        self._files = {} if folder is None else {rank: f"{folder}/{rank}{STOP_SUFFIX}" for rank in place.ranks}
        self._attempt, self._grace, self._report, self._view = place.attempt, grace, report, view
        self._clock = clock
        self._slots: dict[int, Slot] = {}
        self._progress = StopProgress()
        self._takes_part = False
        self._asked_at: float | None = None
        self._held_since = 0.0
        """When the ranks were made to wait, or got the step."""

    @property
    def interval(self) -> float | None:
        """How often to call `update`, in seconds; None: when something happens."""
        return LOOK_SECONDS if self._files and (not self._takes_part or self._progress.leaving) else None

    @property
    def is_agreed(self) -> bool:
        """Whether the step after which the ranks exit is known."""
        return self._progress.at is not None

    @property
    def obeyed(self) -> int | None:
        """The step after which a rank of this worker exited as agreed; None where none has."""
        with suppress(OSError):
            if self.is_agreed and any(slot.obeyed for slot in self._slots.values()):
                return self._progress.at
        return None

    @property
    def holds(self) -> bool:
        """Whether the ranks make no step because of the stop: they wait for the last one, or write a checkpoint after it."""
        held = self._grace if self.is_agreed else PATIENCE_SECONDS if self._progress.asked else 0.0
        return self._clock() - self._held_since < held

    def expects(self, codes: Iterable[int]) -> bool:
        """Return whether these exit codes are as agreed, so that the other ranks are left alone."""
        return self.is_agreed and set(codes) <= {0, SAVED}

    def update(self, signals: int) -> bool:
        """Take the next step of the stop. `signals`: how many have come by which this worker is asked to exit.

        Returns whether the ranks are spared these for now: they exit by themselves, at a better moment.
        """
        if not self._takes_part:
            if not self._open_slots():
                return False
            self._takes_part = True
            self._report(self._progress)
        if signals and self._asked_at is None:
            self._asked_at = self._clock()
            self._set(self._progress._replace(leaving=True))
        view = self._view()
        if view.order is not None and view.order.attempt == self._attempt and view.final is None:
            self._obey(view.order)
        if self._asked_at is None or view.final is not None or signals > 1:
            return False
        patience = self._grace * (1 - RESERVED_SHARE) if self.is_agreed else min(AGREE_SECONDS, self._grace / 2)
        return self._clock() - self._asked_at < patience

    def close(self) -> None:
        """Close the files of the ranks, when the attempt is over."""
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()

    def _open_slots(self) -> bool:
        """Return whether all ranks take part."""
        for rank, path in self._files.items():
            if rank not in self._slots:
                try:
                    self._slots[rank] = Slot(path)
                except OSError:
                    return False
        return bool(self._slots)

    def _obey(self, order: Order) -> None:
        """Make the ranks wait for the step, pass it to them, or let them go on."""
        progress, slots = self._progress, self._slots.values()
        try:
            if not order.stops:
                if progress.asked:
                    self._set(StopProgress(progress.leaving))
                    for slot in slots:
                        slot.release()
            elif not progress.asked:
                self._held_since = self._clock()
                self._set(progress._replace(asked=True, passed=hold_all(slots)))
            elif progress.passed is not None and order.stop_at is not None and order.stop_at != progress.at:
                for slot in slots:
                    slot.set_stop_step(order.stop_at)
                self._held_since = self._clock()
                self._set(progress._replace(at=order.stop_at))
        except OSError:
            # A rank that was stopped, or has broken its file, takes no part.
            self._set(StopProgress(progress.leaving, asked=True))

    def _set(self, progress: StopProgress) -> None:
        if progress != self._progress:
            self._progress = progress
            self._report(progress)
