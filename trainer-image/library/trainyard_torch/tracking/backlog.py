"""A bounded queue of unsent events, in order. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from trainyard_torch.tracking.events import CheckpointSaved, MetricsLogged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainyard_torch.tracking.events import Event

MIN_CAPACITY = 16


class Backlog:
    """A queue that is thinned out evenly over its time span when it is full: every second measurement is dropped.

    The start and end of an attempt are never dropped.

    Args:
        capacity: the maximum number of events, at least 16.

    Attributes:
        left_out: the number of dropped measurements and checkpoints.

    Raises:
        ValueError: the capacity is too small.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < MIN_CAPACITY:
            raise ValueError(f"capacity must be from {MIN_CAPACITY} on, not {capacity}")
        self._capacity = capacity
        self._events: deque[Event] = deque()
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """Add an event at the end."""
        if len(self._events) >= self._capacity:
            self._thin()
        self._events.append(event)

    def take(self, most: int) -> list[Event]:
        """Remove and return the first events, at most `most`."""
        return [self._events.popleft() for _ in range(min(most, len(self._events)))]

    def give_back(self, events: Sequence[Event]) -> None:
        """Put events that could not be sent back to the front."""
        self._events.extendleft(reversed(events))

    def _thin(self) -> None:
        may_go = [
            number for number, event in enumerate(self._events) if isinstance(event, (MetricsLogged, CheckpointSaved))
        ]
        gone = set(may_go[::2])
        self.left_out += len(gone)
        self._events = deque(event for number, event in enumerate(self._events) if number not in gone)
