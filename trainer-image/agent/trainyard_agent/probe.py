"""Check a program as the kubelet does: by an HTTP request, a TCP connection, or the health service of gRPC."""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any

FRAME = struct.Struct(">HBBBI")
"""The head of a frame of HTTP/2: its length in two parts, type, flags, stream."""
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
SERVING = b"\x08\x01"
"""A HealthCheckResponse whose field 1, the status, is 1."""


def main(text: str) -> int:
    """Run the check that a JSON object describes. Returns the exit code of a probe."""
    spec = json.loads(text)
    checks = {"http": check_http, "tcp": check_tcp, "grpc": check_grpc}
    error: object = "no address"
    for host in _hosts(spec):
        try:
            error = checks[spec["kind"]](spec, host)
        except (OSError, ValueError) as raised:
            error = raised
        if not error:
            return 0
    sys.stdout.write(f"{spec['kind']} probe failed: {error}\n")
    return 1


def check_http(spec: Mapping[str, Any], host: str) -> str:
    """Return why a GET request failed, or an empty string."""
    import http.client  # noqa: PLC0415 - the other kinds do without
    import ssl  # noqa: PLC0415 - as above

    made: http.client.HTTPConnection
    if spec.get("scheme") == "HTTPS":
        # As the kubelet does, which cannot know the authority either.
        unverified = ssl._create_unverified_context()  # noqa: S323, SLF001 - see above
        made = http.client.HTTPSConnection(host, spec["port"], timeout=spec["timeout"], context=unverified)
    else:
        made = http.client.HTTPConnection(host, spec["port"], timeout=spec["timeout"])
    try:
        headers = {"User-Agent": "kube-probe/trainyard", "Accept": "*/*", "Connection": "close"}
        own = {each["name"]: each.get("value", "") for each in spec.get("headers") or ()}
        made.request("GET", spec.get("path") or "/", headers={**headers, **own})
        status = made.getresponse().status
    except http.client.HTTPException as error:
        return repr(error)
    finally:
        made.close()
    return "" if 200 <= status < 400 else f"HTTP status {status}"


def check_tcp(spec: Mapping[str, Any], host: str) -> str:
    """Connect. Raises OSError where that is not possible."""
    socket.create_connection((host, spec["port"]), spec["timeout"]).close()
    return ""


def check_grpc(spec: Mapping[str, Any], host: str) -> str:
    """Return why `grpc.health.v1.Health/Check` does not answer SERVING, or an empty string."""
    with socket.create_connection((host, spec["port"]), spec["timeout"]) as made:
        made.settimeout(spec["timeout"])
        service = (spec.get("service") or "").encode()
        request = b"\x0a" + bytes([len(service)]) + service if service else b""
        headers = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/grpc.health.v1.Health/Check"),
            (":authority", f"{host}:{spec['port']}"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
        # Literals without indexing and without Huffman's code; each is shorter than 127 bytes.
        block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in headers)
        made.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(SETTINGS, 0, 0, b"")
            + _frame(HEADERS, END_HEADERS, 1, block)
            + _frame(DATA, END_STREAM, 1, b"\0" + struct.pack(">I", len(request)) + request)
        )
        message = _read_message(made)
    return "" if message == SERVING else "the service is not SERVING"


def _read_message(made: socket.socket) -> bytes:
    """Return the first message of the answer; empty where there is none."""
    data = b""
    with made.makefile("rb") as stream:
        while len(head := stream.read(FRAME.size)) == FRAME.size:
            high, low, kind, flags, number = FRAME.unpack(head)
            payload = stream.read(high << 8 | low)
            if kind in {SETTINGS, PING} and not flags & ACK:
                made.sendall(_frame(kind, ACK, 0, payload if kind == PING else b""))
            elif kind in {RESET, GOAWAY}:
                break
            elif kind == DATA and number == 1:
                data += payload
            if kind in {DATA, HEADERS} and number == 1 and flags & END_STREAM:
                break
    return data[5:]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return FRAME.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def _literal(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _hosts(spec: Mapping[str, Any]) -> list[str]:
    """Return the addresses to try: the pod's, as the kubelet does, and the local one."""
    if spec.get("host"):
        return [spec["host"]]
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    return [*dict.fromkeys([str(each[4][0]) for each in found]), "localhost"]
