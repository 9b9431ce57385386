"""What is still to be told, in order, and never more than there is room for. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from trainyard_torch.tracking.events import CheckpointSaved, MetricsLogged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainyard_torch.tracking.events import Event

MIN_CAPACITY = 16


class Backlog:
    """Where nobody takes anything for long, it grows coarser, not shorter: every second measurement goes, from all of the time that is in it.

    What begins and ends an attempt stays in any case.

    Args:
        room: how many events there may be, from 16 on.

    Attributes:
        left_out: measurements and checkpoints that have gone.

    Raises:
        ValueError: there is too little room.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < MIN_CAPACITY:
            raise ValueError(f"room must be from {MIN_CAPACITY} on, and is {capacity}")
        self._capacity = capacity
        self._events: deque[Event] = deque()
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """One more, behind all others."""
        if len(self._events) >= self._capacity:
            self._thin()
        self._events.append(event)

    def take(self, most: int) -> list[Event]:
        """The first ones, at most so many. They are no more in here."""
        return [self._events.popleft() for _ in range(min(most, len(self._events)))]

    def give_back(self, events: Sequence[Event]) -> None:
        """What was taken and could not be told is first again."""
        self._events.extendleft(reversed(events))

    def _thin(self) -> None:
        may_go = [
            number for number, event in enumerate(self._events) if isinstance(event, (MetricsLogged, CheckpointSaved))
        ]
        gone = set(may_go[::2])
        self.left_out += len(gone)
        self._events = deque(event for number, event in enumerate(self._events) if number not in gone)
