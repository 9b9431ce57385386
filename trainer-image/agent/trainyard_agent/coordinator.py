"""The operator, as an agent sees it: HTTPS to the one of its processes that leads. No state beyond who that was."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from trainyard_agent.reporter import NoAnswerError

URL, AUTHORITY, TOKEN = "TRAINYARD_COORDINATOR", "TRAINYARD_COORDINATOR_CA", "TRAINYARD_TOKEN_FILE"
REPORT = "/v1/report"
ELSEWHERE = 503
"""What a process answers that does not lead, or is not ready yet."""
LONGEST_ANSWER = 64 * 1024


class Coordinator:
    """Where reports go. Raises ValueError, with a sentence, for settings of which nothing can be made."""

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
        self._last: object = None
        """The address of the process that took the last report."""

    def report(self, body: Mapping[str, object], seconds: float) -> float:
        """Tell it, and return after how many seconds to tell again. Each step may take so many `seconds`. Raises NoAnswerError."""
        data = json.dumps(body, allow_nan=False).encode()
        try:
            token = self._token.read_text().strip()
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NoAnswerError(f"{error.strerror or error}") from error
        refused, why = "", "its name has no address"
        for address in sorted(dict.fromkeys(each[4] for each in found), key=lambda each: each != self._last):
            try:
                status, answer = self._ask(address, token, data, seconds)
            except (OSError, http.client.HTTPException, ValueError) as error:
                why = str(error) or type(error).__name__
                continue
            if status == http.HTTPStatus.OK:
                self._last = address
                return _pause(answer)
            why = f"{answer.get('reason', status)}: {answer.get('message', '')}"
            # What the one that leads says is worth more than that the others do not.
            refused = refused or (why if answer.get("reason") != "NotLeading" else "")
            if status != ELSEWHERE:
                break
        raise NoAnswerError(refused or why)

    def _ask(
        self, address: tuple[object, ...], token: str, data: bytes, seconds: float
    ) -> tuple[int, dict[str, object]]:
        # By address, since only one of several leads; checked by name.
        plain = socket.create_connection((str(address[0]), self.port), timeout=seconds)
        connection = http.client.HTTPConnection(self.host, self.port)
        try:
            connection.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("POST", REPORT, data, headers)
            response = connection.getresponse()
            answer = json.loads(response.read(LONGEST_ANSWER))
            if not isinstance(answer, dict):
                raise ValueError("the answer is no object")  # noqa: TRY004 - of what came, not of what it was called with
            return response.status, answer
        finally:
            connection.close()
            plain.close()


def _pause(answer: Mapping[str, object]) -> float:
    pause = answer.get("next")
    return min(600.0, max(1.0, float(pause))) if isinstance(pause, (int, float)) else 60.0
