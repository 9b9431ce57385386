"""The few calls to the API server that starting a cluster needs, by the standard library alone."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from dev.localcluster.addresses import API_PORT, GATEWAY
from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CALL_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.1


class ApiUnavailableError(LocalClusterError):
    """No answer, or one that does not help; the server may still be starting."""


@dataclass(frozen=True, slots=True)
class Api:
    """Calls as the administrator. One connection a call: there are few, and the server may come and go."""

    pki: Path

    def get(self, path: str) -> dict[str, Any]:
        """The object at a path.

        Raises:
            ApiUnavailableError: there was no good answer.
        """
        status, body = self._call("GET", path, None)
        if status != HTTPStatus.OK:
            raise ApiUnavailableError(f"GET {path}: {status}")
        return dict(json.loads(body)) if body.startswith(b"{") else {}

    def create(self, path: str, body: dict[str, Any]) -> None:
        """Makes an object; it is fine if it is there already.

        Raises:
            LocalClusterError: the server refuses it.
        """
        status, answer = self._call("POST", path, body)
        if status not in {HTTPStatus.CREATED, HTTPStatus.CONFLICT}:
            raise LocalClusterError(f"the API server refused a {body['kind']}: {answer.decode(errors='replace')}")

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        try:
            context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
            context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
            connection = http.client.HTTPSConnection(GATEWAY, API_PORT, timeout=CALL_SECONDS, context=context)
            try:
                headers = {"Content-Type": "application/json"}
                connection.request(method, path, body=json.dumps(body) if body else None, headers=headers)
                response = connection.getresponse()
                return response.status, response.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise ApiUnavailableError(f"{method} {path}: {error}") from error


def wait_until(ready: Callable[[], bool], *, seconds: float, failure: str, obstacle: Callable[[], str]) -> None:
    """Polls until it is ready.

    Args:
        ready: may raise ApiUnavailableError, which counts as no.
        seconds: how long at most.
        failure: the sentence for when it does not become ready.
        obstacle: what has made it impossible meanwhile, such as a dead process; ends the wait at once.

    Raises:
        LocalClusterError: it did not become ready.
    """
    deadline = time.monotonic() + seconds
    last = ""
    while time.monotonic() < deadline:
        if found := obstacle():
            raise LocalClusterError(f"{failure} ({found})")
        try:
            if ready():
                return
        except ApiUnavailableError as error:
            last = f" ({error})"
        time.sleep(POLL_SECONDS)
    raise LocalClusterError(failure + last)
