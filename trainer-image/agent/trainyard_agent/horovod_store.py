"""The store in which the ranks of a Horovod job find each other: values by scope and key, over HTTP.

`GET`, `PUT` and `DELETE` of `/SCOPE/KEY`, as of horovod 0.28 (`runner/http/http_server.py`). A rank waits for a value by asking for it again
and again. Each deletes its own values once all ranks are connected, so that they can meet again in the same scope. Values are never
interpreted: some are pickles. The protocol knows no secret; the NetworkPolicy of the job admits its own pods alone.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn

from trainyard_agent.horovod import Rendezvous

REQUEST_SECONDS = 30.0
MAX_VALUE_BYTES = 8 << 20
"""A value has about 150 bytes for each rank of the group."""
MAX_STORE_BYTES = 512 << 20
WAITING_CONNECTIONS = 1024
OK, BAD_REQUEST, NOT_FOUND, TOO_LARGE, FULL = 200, 400, 404, 413, 507


class Store:
    """Values by scope and key. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], bytes] = {}
        self._size = 0

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value; None where there is none."""
        with self._lock:
            return self._values.get((scope, key))

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Store a value. Returns whether there was room for it."""
        with self._lock:
            size = self._size + len(value) - len(self._values.get((scope, key), b""))
            if size > MAX_STORE_BYTES:
                return False
            self._values[scope, key], self._size = value, size
            return True

    def delete(self, scope: str, key: str) -> None:
        """Remove a value, where there is one."""
        with self._lock:
            self._size -= len(self._values.pop((scope, key), b""))


class _Handler(BaseHTTPRequestHandler):
    """One request of a rank."""

    timeout = REQUEST_SECONDS
    server: StoreServer

    def do_GET(self) -> None:  # the name is that of the standard library
        found = self._name()
        value = None if found is None else self.server.store.get(*found)
        if found is None:
            self._answer(BAD_REQUEST)
        elif value is None:
            self._answer(NOT_FOUND)
        else:
            self._answer(OK, value)

    def do_PUT(self) -> None:
        found, length = self._name(), self.headers.get("Content-Length", "")
        if found is None or not (length.isascii() and length.isdecimal()):
            self._answer(BAD_REQUEST)
            return
        # A long number is none to convert.
        if len(length) > 9 or int(length) > MAX_VALUE_BYTES:
            self._answer(TOO_LARGE)
            return
        value = self.rfile.read(int(length))
        if len(value) < int(length):
            self._answer(BAD_REQUEST)
            return
        self._answer(OK if self.server.store.put(*found, value) else FULL)

    def do_DELETE(self) -> None:
        found = self._name()
        if found is not None:
            self.server.store.delete(*found)
        self._answer(BAD_REQUEST if found is None else OK)

    def _name(self) -> tuple[str, str] | None:
        """Return the scope and the key of the request; None for another path."""
        empty, _, rest = self.path.partition("/")
        scope, _, key = rest.partition("/")
        return (scope, key) if not empty and scope and key else None

    def _answer(self, code: int, body: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # type: ignore[explicit-override]  # noqa: A002 - as in the standard library
        """Write no line for each request: ranks ask a hundred times a second."""


class StoreServer(ThreadingMixIn, HTTPServer):
    """Serves a store of one attempt, in a thread of its own. Use it in a `with`. Raises OSError."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = WAITING_CONNECTIONS

    def __init__(self, where: Rendezvous) -> None:
        self.store = Store()
        super().__init__(where, _Handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    def server_bind(self) -> None:  # type: ignore[explicit-override]  # no typing_extensions here
        """Bind the port, without a look at the host's name in DNS, which may take seconds."""
        TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:  # type: ignore[explicit-override]  # no typing_extensions here
        """Say nothing: a rank that was killed leaves broken connections behind."""

    def __enter__(self) -> StoreServer:  # type: ignore[explicit-override]  # noqa: PYI034 - Self needs Python 3.11
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:  # type: ignore[explicit-override]  # no typing_extensions here
        self.shutdown()
        self._thread.join()
        self.server_close()
