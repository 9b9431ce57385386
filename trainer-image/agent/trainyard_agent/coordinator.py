"""Send requests to the operator: HTTPS to the process that leads. The only state is which process that was."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from trainyard_agent.errors import NoAnswerError
from trainyard_agent.protocol import REPORT_PATH, parse_refusal, parse_report_pause, parse_retry_delay

URL, AUTHORITY, TOKEN = "TRAINYARD_COORDINATOR", "TRAINYARD_COORDINATOR_CA", "TRAINYARD_TOKEN_FILE"
UNAVAILABLE = 503
"""The status of a process that does not lead, or is not ready yet."""
MAX_ANSWER_BYTES = 64 * 1024

Address = tuple[Any, ...]


class Answer(NamedTuple):
    """An answer of the operator."""

    status: int
    body: object
    """Its JSON; None where it was none."""

    @property
    def text(self) -> str:
        """Of a refusal: its reason and message."""
        return parse_refusal(self.status, self.body)[1]

    @property
    def reason(self) -> str | None:
        """Of a refusal: its reason."""
        return parse_refusal(self.status, self.body)[0]

    @property
    def after(self) -> float:
        """Of a refusal: the seconds that it asks for before the next try."""
        return parse_retry_delay(self.body)


class Coordinator:
    """The operator's processes. Raises ValueError, with a sentence, for settings that are wrong."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        parts = urlsplit(environment[URL])
        if parts.scheme != "https" or not parts.hostname:
            raise ValueError(f"{URL} must be https://NAME:PORT, got {environment[URL]!r}")
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
        self._unreachable: set[Address] = set()
        """Addresses at which no process answered when they were tried last."""

    def report(self, body: Mapping[str, object], seconds: float) -> float:
        """Send a report, and return the seconds until the next. Each step may take so many `seconds`. Raises NoAnswerError."""
        data = json.dumps(body, allow_nan=False).encode()
        refused, why, after = "", "its name has no address", 0.0
        for address in self.addresses():
            try:
                answer = self._send_report(address, data, seconds)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.mark_unreachable(address)
                why = str(error) or type(error).__name__
                continue
            if answer.status == http.HTTPStatus.OK and isinstance(answer.body, dict):
                self.mark_leader(address)
                return parse_report_pause(answer.body)
            why = answer.text
            # The leader's reason is worth more than that the others do not lead.
            refused = refused or (why if answer.reason != "NotLeading" else "")
            if answer.status != UNAVAILABLE:
                after = answer.after
                break
        raise NoAnswerError(refused or why, after)

    def addresses(self) -> list[Address]:
        """Return the addresses of all processes: the one that answered last first, unreachable ones last. Raises NoAnswerError."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NoAnswerError(f"{error.strerror or error}") from error
        unique = dict.fromkeys(each[4] for each in found)
        self._unreachable &= unique.keys()
        return sorted(unique, key=lambda each: (each in self._unreachable, each != self.last))

    def mark_leader(self, address: Address) -> None:
        """Remember that the process at this address answered."""
        self.last = address
        self._unreachable.discard(address)

    def mark_unreachable(self, address: Address | None) -> None:
        """Try this address last: a lost machine costs seconds each time, while another process leads."""
        if address is not None:
            self._unreachable.add(address)

    def connect(self, address: Address, seconds: float) -> http.client.HTTPConnection:
        """Return a connection to one address, since only one process leads; the certificate is checked by name. Raises OSError."""
        plain = socket.create_connection((str(address[0]), self.port), timeout=seconds)
        connection = http.client.HTTPConnection(self.host, self.port)
        try:
            connection.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
        return connection

    def send(self, connection: http.client.HTTPConnection, path: str, data: bytes) -> None:
        """Send a request. Raises OSError and HTTPException."""
        try:
            # Read each time: the kubelet renews it.
            token = self._token.read_text().strip()
        except OSError as error:
            raise OSError(f"{self._token}: {error.strerror}") from error
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", path, data, headers)

    def _send_report(self, address: Address, data: bytes, seconds: float) -> Answer:
        connection = self.connect(address, seconds)
        try:
            self.send(connection, REPORT_PATH, data)
            answer = receive(connection)
            if not isinstance(answer.body, dict):
                raise ValueError("the answer is not an object")  # noqa: TRY004 - of what came, not of what it was called with
            return answer
        finally:
            connection.close()


def receive(connection: http.client.HTTPConnection) -> Answer:
    """Return the answer. Raises OSError, HTTPException, and ValueError for one that is not JSON or too long."""
    response = connection.getresponse()
    data = response.read(MAX_ANSWER_BYTES + 1)
    if response.status in {http.HTTPStatus.NOT_FOUND, UNAVAILABLE} and not data.startswith(b"{"):
        # Of these the status is enough: a proxy may have sent it.
        return Answer(response.status, None)
    if len(data) > MAX_ANSWER_BYTES:
        raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    try:
        return Answer(response.status, json.loads(data))
    except RecursionError:
        raise ValueError("brackets within brackets") from None
