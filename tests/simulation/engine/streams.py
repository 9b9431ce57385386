"""An open watch, from the server's side to the client's: late, with gaps and repeats, silent or cut, as the network_faults is."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.engine.network_faults import NetworkFaults
from tests.simulation.engine.virtual_time import Loop, Time, Timer
from tests.support.fake_cluster import Change, Json, Place, label_selector
from trainyard.kube.errors import ApiError

if TYPE_CHECKING:
    import asyncio

BOOKMARK_SECONDS = 60.0
REMEMBERED = 4
"""How many of the last events can be delivered again."""


class Stream:
    """One watch. Events are sent in their order; `receive` is the client's end.

    A bookmark follows an event. A healthy watch without events gets no bookmark, as an hour of quiet would be full of
    them. A watch falls silent only by `hush`.
    """

    def __init__(
        self,
        time: Time,
        network_faults: NetworkFaults,
        loop: Loop,
        place: Place,
        selector: str,
        *,
        bookmarks: bool,
        idle: float,
    ) -> None:
        self.place = place
        self.over = False
        self._time, self._network_faults, self._loop = time, network_faults, loop
        self._selects = label_selector(selector)
        self._bookmarks = bookmarks
        self._idle = idle
        self._on_its_way: deque[tuple[float, Json]] = deque()
        self._arrived: deque[Json] = deque()
        self._published: deque[Json] = deque(maxlen=REMEMBERED)
        self._waiter: asyncio.Future[None] | None = None
        self._end: ApiError | None = None
        self._silent = False
        self._bookmark: Timer | None = None

    @property
    def plural(self) -> str:
        return self.place[2]

    # The server's end.

    def publish(self, change: Change, newest: Callable[[], int]) -> None:
        """Something has changed; `newest` is the version that the server has come to."""
        if self.over or self._silent:
            return
        if self._bookmarks and self._bookmark is None:
            self._bookmark = self._time.after(BOOKMARK_SECONDS, lambda: self._mark(newest()))
        if change.place != self.place or (event := change.event(self._selects)) is None:
            return
        if self._network_faults.use_up(self._network_faults.drops, self.plural):
            self._network_faults.lossy.add(self.plural)
            return
        self._send(event)
        if self._published and self._network_faults.use_up(self._network_faults.repeats, self.plural):
            self._send(self._published[0])
        self._published.append(event)

    def finish(self, end: ApiError | None) -> None:
        """The watch ends, in good order (None) or not. What has not arrived never will."""
        if self.over:
            return
        self.over, self._end = True, end
        self._on_its_way.clear()
        self._wake()

    def error(self, status: Json) -> None:
        """The server's last word, in the stream itself."""
        self._arrived.append({"type": "ERROR", "object": status})
        self.finish(None)

    def hush(self) -> None:
        """Nothing arrives any more, without an error: after a while the client gives up."""
        if not self._silent:
            self._silent = True
            self._on_its_way.clear()
            error = ApiError(0, "Timeout", f"{self.plural}: the watch was silent")
            self._time.after(self._idle, lambda: self.finish(error))

    def _mark(self, version: int) -> None:
        self._bookmark = None
        if not self.over and not self._silent:
            self._send({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}})

    def _send(self, event: Json) -> None:
        at = self._time.now + self._network_faults.lag.get(self.plural, 0.002)
        if self._on_its_way:
            at = max(at, self._on_its_way[-1][0])
        else:
            self._time.at(at, self._deliver)
        self._on_its_way.append((at, event))

    def _deliver(self) -> None:
        while self._on_its_way and self._on_its_way[0][0] <= self._time.now:
            self._arrived.append(self._on_its_way.popleft()[1])
        if self._on_its_way:
            self._time.at(self._on_its_way[0][0], self._deliver)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The client's end.

    async def receive(self) -> Json | None:
        """The next event, or None at the end. Raises the `ApiError` that it ended with."""
        while not self._arrived:
            if self.over:
                if self._end is not None:
                    raise self._end
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._arrived.popleft()
