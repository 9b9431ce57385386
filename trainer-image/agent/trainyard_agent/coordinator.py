"""The operator, as an agent sees it: HTTPS to the one of its processes that leads. No state beyond who that was."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from trainyard_agent.reporter import NoAnswerError

URL, AUTHORITY, TOKEN = "TRAINYARD_COORDINATOR", "TRAINYARD_COORDINATOR_CA", "TRAINYARD_TOKEN_FILE"
REPORT, SYNC = "/v1/report", "/v1/sync"
ELSEWHERE = 503
"""What a process answers that does not lead, or is not ready yet."""
LONGEST_ANSWER = 64 * 1024

Address = tuple[Any, ...]


class Answer(NamedTuple):
    """What the operator has said."""

    status: int
    said: object
    """The JSON of it; None where it was none."""

    @property
    def why(self) -> str:
        """Of a refusal, in words."""
        said = self.said if isinstance(self.said, dict) else {}
        return f"{said.get('reason', self.status)}: {said.get('message', '')}"

    @property
    def reason(self) -> object:
        """Of a refusal, the one word."""
        return self.said.get("reason") if isinstance(self.said, dict) else None


class Coordinator:
    """Where to ask. Raises ValueError, with a sentence, for settings of which nothing can be made."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        parts = urlsplit(environment[URL])
        if parts.scheme != "https" or not parts.hostname:
            raise ValueError(f"{URL} must be https://NAME:PORT, and is {environment[URL]!r}")
        self.host, self.port = parts.hostname, parts.port or 443
        self._token = Path(environment.get(TOKEN, ""))
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if authority := environment.get(AUTHORITY):
            try:
                self._tls.load_verify_locations(cadata=authority)
            except ssl.SSLError as error:
                raise ValueError(f"{AUTHORITY} holds no certificate: {error}") from error
        else:
            self._tls.load_default_certs()
        self.last: Address | None = None
        """The address of the process that answered last."""
        self._away: set[Address] = set()
        """Addresses at which nobody was, when they were tried last."""

    def report(self, body: Mapping[str, object], seconds: float) -> float:
        """Tell it, and return after how many seconds to tell again. Each step may take so many `seconds`. Raises NoAnswerError."""
        data = json.dumps(body, allow_nan=False).encode()
        refused, why = "", "its name has no address"
        for address in self.addresses():
            try:
                answer = self._tell(address, data, seconds)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.lost(address)
                why = str(error) or type(error).__name__
                continue
            if answer.status == http.HTTPStatus.OK and isinstance(answer.said, dict):
                self.found(address)
                return _pause(answer.said)
            why = answer.why
            # What the one that leads says is worth more than that the others do not.
            refused = refused or (why if answer.reason != "NotLeading" else "")
            if answer.status != ELSEWHERE:
                break
        raise NoAnswerError(refused or why)

    def addresses(self) -> list[Address]:
        """Of all its processes, the one that answered last first, and those that are away last. Raises NoAnswerError."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NoAnswerError(f"{error.strerror or error}") from error
        made = dict.fromkeys(each[4] for each in found)
        self._away &= made.keys()
        return sorted(made, key=lambda each: (each in self._away, each != self.last))

    def found(self, address: Address) -> None:
        """It has answered."""
        self.last = address
        self._away.discard(address)

    def lost(self, address: Address | None) -> None:
        """It does not: a machine that is gone costs seconds each time, while another process leads."""
        if address is not None:
            self._away.add(address)

    def connect(self, address: Address, seconds: float) -> http.client.HTTPConnection:
        """By address, since only one of several leads; checked by name. Raises OSError."""
        plain = socket.create_connection((str(address[0]), self.port), timeout=seconds)
        connection = http.client.HTTPConnection(self.host, self.port)
        try:
            connection.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
        return connection

    def send(self, connection: http.client.HTTPConnection, path: str, data: bytes) -> None:
        """A request. Raises OSError and HTTPException."""
        try:
            # Each time anew: the kubelet renews it.
            token = self._token.read_text().strip()
        except OSError as error:
            raise OSError(f"{self._token}: {error.strerror}") from error
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", path, data, headers)

    def _tell(self, address: Address, data: bytes, seconds: float) -> Answer:
        connection = self.connect(address, seconds)
        try:
            self.send(connection, REPORT, data)
            answer = receive(connection)
            if not isinstance(answer.said, dict):
                raise ValueError("the answer is no object")  # noqa: TRY004 - of what came, not of what it was called with
            return answer
        finally:
            connection.close()


def receive(connection: http.client.HTTPConnection) -> Answer:
    """The answer. Raises OSError, HTTPException, and ValueError for one that is no JSON or too long."""
    response = connection.getresponse()
    data = response.read(LONGEST_ANSWER + 1)
    if response.status in {http.HTTPStatus.NOT_FOUND, ELSEWHERE} and not data.startswith(b"{"):
        # Of these the number is enough: it may be a proxy that says so.
        return Answer(response.status, None)
    if len(data) > LONGEST_ANSWER:
        raise ValueError(f"the answer is longer than {LONGEST_ANSWER} bytes")
    try:
        return Answer(response.status, json.loads(data))
    except RecursionError:
        raise ValueError("brackets within brackets") from None


def _pause(answer: Mapping[str, object]) -> float:
    pause = answer.get("next")
    return min(600.0, max(1.0, float(pause))) if isinstance(pause, (int, float)) else 60.0
