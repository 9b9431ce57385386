"""The lines that `remote-start` and the agent of another worker exchange. Pure.

A connection is one request. Both sides begin with a nonce. Each further line is `MAC JSON`, by a key of that connection: a recorded line is
of no use in another one. The lines are authentic, and not encrypted (docs/design/0047-mpi-without-ssh.md).
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

MAX_LINE_BYTES = 256 * 1024
"""A daemon's command names all hosts of the job."""
NONCE_BYTES = 16
MAX_WORDS = 4096


class LineError(Exception):
    """A line is not authentic, malformed or too long; the message says which."""


class Side(Enum):
    """Who sends a line."""

    CALLER = "caller"
    AGENT = "agent"


class Action(Enum):
    """What the caller asks for."""

    START = "start"
    """Start a daemon, and report how it exits."""
    STATE = "state"
    """Report whether daemons run, and whether one has failed."""
    FINISH = "finish"
    """The launcher has succeeded: no daemon is asked for any more."""


class Lines:
    """Seals what this side sends, and opens what the other side sends."""

    def __init__(self, secret: str, caller_nonce: bytes, agent_nonce: bytes, side: Side) -> None:
        self._key = hmac.digest(secret.encode(), b"trainyard remote start\n" + caller_nonce + agent_nonce, "sha256")
        self._side = side
        self._sent = self._received = 0

    def sealed(self, fields: Mapping[str, object]) -> bytes:
        """Return the next line of this side."""
        payload = json.dumps(fields, ensure_ascii=True).encode()
        mac = self._mac(self._side, self._sent, payload)
        self._sent += 1
        return mac + b" " + payload + b"\n"

    def opened(self, line: bytes) -> dict[str, Any]:
        """Return the fields of the next line of the other side. Raises LineError."""
        other = Side.AGENT if self._side is Side.CALLER else Side.CALLER
        mac, _, payload = line.rstrip(b"\n").partition(b" ")
        if not hmac.compare_digest(mac, self._mac(other, self._received, payload)):
            raise LineError("the secret of the attempt is another one")
        self._received += 1
        try:
            fields = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise LineError("the line is no JSON") from error
        if not isinstance(fields, dict):
            raise LineError("the line is no object")
        return fields

    def _mac(self, side: Side, number: int, payload: bytes) -> bytes:
        text = f"{side.value} {number}\n".encode() + payload
        return hmac.digest(self._key, text, "sha256").hex().encode()


def nonce_line(nonce: bytes) -> bytes:
    """Return the first line of a side."""
    return nonce.hex().encode() + b"\n"


def parse_nonce(line: bytes) -> bytes:
    """Return the nonce in the first line of the other side. Raises LineError."""
    try:
        nonce = bytes.fromhex(line.strip().decode("ascii"))
    except ValueError as error:
        raise LineError("the first line is no nonce") from error
    if len(nonce) != NONCE_BYTES:
        raise LineError("the first line is no nonce")
    return nonce


def parse_action(fields: Mapping[str, Any]) -> tuple[Action, Sequence[str]]:
    """Return what a caller asks for, and the words of the command. Raises LineError."""
    try:
        action = Action(fields.get("action"))
    except ValueError as error:
        raise LineError("the action is unknown") from error
    words = fields.get("words", [])
    if not isinstance(words, list) or len(words) > MAX_WORDS:
        raise LineError("the command is no list of words")
    if not all(isinstance(word, str) and "\0" not in word for word in words):
        raise LineError("the command is no list of words")
    return action, words
