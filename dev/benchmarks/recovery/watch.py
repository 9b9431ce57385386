"""Watch one collection of the API server, and record its events with their time of arrival."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ssl import SSLContext
from typing import Any, Final, Self
from urllib.parse import urlsplit

from dev.benchmarks.scale.api import Api

Event = Mapping[str, Any]
PAUSE_SECONDS: Final = 0.5


class Watch:
    """A thread that reads a watch until the `with` block exits. The query selects objects of the collection."""

    def __init__(self, api: Api, path: str, query: str) -> None:
        self._api, self._path = api, f"{path}?{query}&watch=1"
        self._events: list[tuple[float, Event]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def first(self, after: float, holds: Callable[[Event], bool]) -> float | None:
        """Return the time of the first event after `after` for which `holds` is true; None for none."""
        return next((at for at, event in list(self._events) if at > after and holds(event)), None)

    def last(self) -> Event | None:
        """Return the latest event."""
        return self._events[-1][1] if self._events else None

    def _follow(self) -> None:
        while not self._over.is_set():
            # The server closes a watch from time to time; the next one starts with all existing objects.
            with suppress(OSError, ValueError, http.client.HTTPException):
                self._read()
            self._over.wait(PAUSE_SECONDS)

    def _read(self) -> None:
        tls = self._api.tls()
        connection = http.client.HTTPSConnection(
            urlsplit(self._api.server).netloc, context=tls if isinstance(tls, SSLContext) else None
        )
        try:
            connection.request("GET", self._path)
            self._socket = connection.sock
            response = connection.getresponse()
            while not self._over.is_set() and (line := response.readline()):
                self._events.append((time.monotonic(), json.loads(line)))
        finally:
            self._socket = None
            connection.close()
