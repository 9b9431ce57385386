"""Client of the API server for calls between measurements."""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

Json = dict[str, Any]

JSON: Final = "application/json"
YAML: Final = "application/yaml"
STRATEGIC: Final = "application/strategic-merge-patch+json"
CALL_SECONDS: Final = 120.0
"""Deleting a collection of thousands is one call."""


class BenchmarkError(Exception):
    """The measurement failed; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Api:
    """Calls the API server as the cluster administrator, with one connection per call."""

    server: str
    """Its URL; the keys count where it is https."""
    keys: Path
    """The folder with the administrator's certificate and the cluster's own."""

    def tls(self) -> ssl.SSLContext | bool:
        """Return the TLS settings for aiohttp."""
        if not self.server.startswith("https:"):
            return True
        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        context.load_cert_chain(self.keys / "admin.crt", self.keys / "admin.key")
        return context

    def text(self, method: str, path: str, body: bytes | None = None, content_type: str = JSON) -> tuple[int, str]:
        """Make one call, and return the status code and the body.

        Raises:
            BenchmarkError: there is no answer.
        """
        tls, host = self.tls(), urlsplit(self.server).netloc
        connection = (
            http.client.HTTPSConnection(host, timeout=CALL_SECONDS, context=tls)
            if isinstance(tls, ssl.SSLContext)
            else http.client.HTTPConnection(host, timeout=CALL_SECONDS)
        )
        try:
            connection.request(method, path, body, {"Content-Type": content_type})
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise BenchmarkError(f"{method} {path}: {error}") from error
        finally:
            connection.close()

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, content_type: str = JSON) -> Json:
        """Make one call, and return the object.

        Raises:
            BenchmarkError: the server refuses it.
        """
        status, answer = self.text(method, path, None if body is None else json.dumps(body).encode(), content_type)
        if status >= HTTPStatus.BAD_REQUEST:
            raise BenchmarkError(f"{method} {path}: {status} {answer[:300]}")
        return dict(json.loads(answer))

    def ensure(self, path: str, body: Mapping[str, Any] | bytes) -> dict[str, Any] | None:
        """Create an object from JSON or YAML text, and return it; None if it exists.

        Raises:
            BenchmarkError: the server refuses it.
        """
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = self.text("POST", path, text, YAML if isinstance(body, bytes) else JSON)
        if status not in {HTTPStatus.CREATED, HTTPStatus.CONFLICT}:
            raise BenchmarkError(f"POST {path}: {status} {answer[:300]}")
        return json.loads(answer) if status == HTTPStatus.CREATED else None

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return self.text("GET", path)[0] == HTTPStatus.OK

    def is_empty(self, path: str) -> bool:
        """Return whether the collection is empty or not served."""
        status, answer = self.text("GET", f"{path}?limit=1")
        return status == HTTPStatus.NOT_FOUND or not json.loads(answer).get("items")


def wait(until: Callable[[], bool], seconds: float, failure: str, pause: float = 0.2) -> None:
    """Poll until the condition holds.

    Raises:
        BenchmarkError: it does not hold after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not until():
        if time.monotonic() > deadline:
            raise BenchmarkError(failure)
        time.sleep(pause)
