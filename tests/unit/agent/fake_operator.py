"""A fake operator over HTTPS: it records what agents send, and answers with orders."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from typing_extensions import override

from tests.support.polling import until

Poll = dict[str, Any]


class FakeOperator:
    """Hold each request until the order differs from the worker's state. `fixed_answer` answers all at once."""

    def __init__(self, folder: Path, port: int = 0, address: str = "127.0.0.1") -> None:
        self.polls: list[Poll] = []
        self.reports: list[Poll] = []
        self.orders: Poll = {"attempt": 1, "run": True}
        self.fixed_answer: tuple[int, Any] | None = None
        self.tokens: list[str] = []
        self.report_answer: tuple[int, Any] = (200, {"next": 1})
        self.connections = 0
        self.stopped = False
        self._open: set[socket.socket] = set()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/v1/report":
                    outer.reports.append(body)
                    outer.tokens.append(self.headers["Authorization"])
                    status, answer = outer.report_answer
                else:
                    outer.polls.append(body)
                    status, answer = outer._answer(body)
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            @override
            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            @override
            def process_request_thread(self, request: Any, client_address: Any) -> None:
                # A slow handshake must not block other connections.
                with suppress(OSError, ValueError):
                    request.settimeout(60)
                    wrapped = outer._tls.wrap_socket(request, server_side=True)
                    outer.connections += 1
                    outer._open.add(wrapped)
                    try:
                        self.finish_request(wrapped, client_address)
                    finally:
                        outer._open.discard(wrapped)
                        wrapped.close()

            @override
            def server_close(self) -> None:
                self.socket.close()

        self.server = Server((address, port), Handler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def order(self, attempt: int, *, run: bool, **environment: str) -> None:
        self.orders = {"attempt": attempt, "run": run, "environment": environment}

    def wait_for(self, state: str, attempt: int = 1, times: int = 1) -> Poll:
        """Wait until a worker has reported this state so many times, and return the last request."""

        def matching() -> list[Poll]:
            return [poll for poll in [*self.polls] if (poll["state"], poll["attempt"]) == (state, attempt)]

        until(lambda: len(matching()) >= times, 60, f"the worker to be {state} at attempt {attempt}")
        return matching()[-1]

    @property
    def connected(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def stop(self) -> None:
        """Stop as a killed process does: open connections break."""
        self.stopped = True
        self.server.shutdown()
        self.thread.join()
        for each in [*self._open]:
            with suppress(OSError):
                socket.socket.shutdown(each, socket.SHUT_RDWR)
        self.server.server_close()

    def _answer(self, poll: Poll) -> tuple[int, Any]:
        end = time.monotonic() + 60
        while not self.stopped and time.monotonic() < end:
            if self.fixed_answer is not None:
                return self.fixed_answer
            orders = self.orders
            starts = poll["state"] == "waiting" and orders["run"] and poll["attempt"] == orders["attempt"]
            if poll["attempt"] < orders["attempt"] or starts or _stop_changes(poll, orders) or _asks(poll, orders):
                return 200, orders
            time.sleep(0.01)
        return 200, self.orders


def _stop_changes(poll: Poll, orders: Poll) -> bool:
    leave, stop = poll.get("leave"), orders.get("stop")
    if leave is None or stop is None:
        return leave is not None and leave["asked"]
    return not leave["asked"] or stop["step"] not in {None, leave["at"]}


def _asks(poll: Poll, orders: Poll) -> bool:
    """Return whether the order asks for stacks that this agent has not written."""
    return bool(poll["state"] == "running" and orders.get("stacks", poll["stacks"]) != poll["stacks"])


@contextmanager
def serve_operator(folder: Path, port: int = 0, address: str = "127.0.0.1") -> Iterator[FakeOperator]:
    made = FakeOperator(folder, port, address)
    try:
        yield made
    finally:
        if not made.stopped:
            made.stop()


def credentials(folder: Path, port: int) -> dict[str, str]:
    """Return the variables by which a worker connects to it."""
    return {
        "TRAINYARD_COORDINATOR": f"https://localhost:{port}",
        "TRAINYARD_COORDINATOR_CA": (folder / "ca.crt").read_text(),
        "TRAINYARD_TOKEN_FILE": str(folder / "token"),
    }
