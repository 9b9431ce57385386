"""A thread that sends events at the tracking server's pace. Producers never wait and never see an error."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from trainyard_torch.errors import first_line
from trainyard_torch.tracking.backlog import Backlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainyard_torch.export.record import Record
    from trainyard_torch.tracking.events import Event

logger = logging.getLogger(__name__)
BATCH_EVENTS = 64
"""The events per write."""
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
"""The seconds between retries while the server does not answer."""
CLOSING_RETRY_SECONDS = 0.2
"""The same at the end of the training, while the process waits."""


class TrackingError(Exception):
    """A request to the tracking server failed. The message says why."""


class RefusedError(Exception):
    """The server rejects an event permanently."""


class Sink(Protocol):
    """A tracking backend. Used by one thread."""

    @property
    def name(self) -> str:
        """The name of the backend in a sentence."""

    def write(self, events: Sequence[Event], /) -> None:
        """Send these events in order. The first of all is a `RunStarted`.

        Raises:
            RefusedError: one of them is rejected permanently.
            Exception: they could not be sent now. All of them are sent again later, including those that were stored already.
        """

    def register(self, name: str, url: str, record: Record, local: str | None, /) -> str:
        """Register an export under a model name. Any thread may call it, after all events so far were sent.

        Args:
            name: the name of the model.
            url: the folder of the export.
            record: the record of the export.
            local: its path on this machine, if it has one.

        Returns:
            The version of the registered model.

        Raises:
            TrackingError: it could not be registered.
        """

    def close(self) -> None:
        """Release resources. No more events follow."""


class Background:
    """The sending thread and its queue. It starts with the first event, and is a daemon thread.

    Args:
        sink: the tracking backend.
        queue_size: the number of events that are kept while the backend does not answer.
        pause: the seconds between writes, in which events collect.
        min_retry_seconds: the seconds until the first retry.
    """

    def __init__(
        self, sink: Sink, *, queue_size: int = 4096, pause: float = 1.0, min_retry_seconds: float = MIN_RETRY_SECONDS
    ) -> None:
        self._sink, self._pause, self._min_retry_seconds = sink, pause, min_retry_seconds
        self._backlog = Backlog(queue_size)
        self._changed = threading.Condition()
        self._closing = self._given_up = self._failing = False
        self._busy = 0
        self._refused = 0
        self._thread: threading.Thread | None = None

    def put(self, event: Event) -> None:
        """Queue an event."""
        with self._changed:
            if self._closing:
                return
            self._backlog.put(event)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
                self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Wait until all events so far are sent, up to `seconds`. Return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._backlog or self._busy), seconds)

    def close(self, seconds: float) -> None:
        """Wait until all events are sent, up to `seconds`. The rest is dropped, and its number logged."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            return
        self._thread.join(seconds)
        with self._changed:
            self._given_up = True
            left = len(self._backlog) + self._busy
            self._changed.notify_all()
        if left:
            logger.warning("%s did not answer at the end: dropped %d events", self._sink.name, left)

    def _run(self) -> None:
        most, wait = BATCH_EVENTS, self._min_retry_seconds
        while events := self._next(most):
            try:
                self._sink.write(events)
            except RefusedError as error:
                if len(events) == 1:
                    self._done()
                    self._log_refusal(error)
                else:
                    # One of them is rejected: send them one by one.
                    most = 1
                    self._requeue(events)
                continue
            except Exception as error:  # noqa: BLE001 - no error may affect the training
                self._requeue(events)
                self._log_failure(error)
                self._rest(wait)
                wait = min(2 * wait, MAX_RETRY_SECONDS)
                continue
            self._done()
            self._log_recovery()
            most, wait = min(2 * most, BATCH_EVENTS), self._min_retry_seconds
            self._rest(self._pause)
        self._sink.close()

    def _next(self, most: int) -> list[Event]:
        """Wait for events, and return them; [] when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._backlog or self._closing)
            if self._given_up:
                return []
            events = self._backlog.take(most)
            self._busy = len(events)
            return events

    def _done(self) -> None:
        with self._changed:
            self._busy = 0
            self._changed.notify_all()

    def _requeue(self, events: list[Event]) -> None:
        with self._changed:
            self._busy = 0
            self._backlog.give_back(events)

    def _rest(self, seconds: float) -> None:
        with self._changed:
            if not self._closing:
                self._changed.wait_for(lambda: self._closing, seconds)
            elif self._failing:
                # Retry until the time is over.
                self._changed.wait_for(lambda: self._given_up, CLOSING_RETRY_SECONDS)

    def _log_failure(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            logger.warning(
                "cannot send events to %s (%s): training continues, events are kept and sent again",
                self._sink.name,
                first_line(error),
            )

    def _log_recovery(self) -> None:
        if self._failing:
            self._failing = False
            logger.info("%s answers again; %d events were dropped", self._sink.name, self._backlog.left_out)

    def _log_refusal(self, error: Exception) -> None:
        self._refused += 1
        if self._refused == 1:
            logger.warning("%s rejects some events (%s): they are dropped", self._sink.name, first_line(error))
