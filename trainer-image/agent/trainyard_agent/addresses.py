"""Addresses of pods: this pod's own, and whether something answers at another."""

from __future__ import annotations

import socket

CONNECT_SECONDS = 5.0
MAX_PORT = 65535


def own_address() -> str:
    """Return the IP address of this pod, which its host name stands for; empty where that is none that other pods reach."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    return next((str(each[4][0]) for each in found if not str(each[4][0]).startswith(("127.", "::1", "fe80"))), "")


def connect(host: str, port: int) -> str | None:
    """Return why nothing answers at this address; None where something does."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        return str(error.strerror or error)
    except UnicodeError as error:
        # Of a host with an empty or a too long part.
        return str(error)
    return None


def host_and_port(address: str) -> tuple[str, int] | None:
    """Return the parts of `host:port`; None where it is no such address."""
    host, _, text = address.rpartition(":")
    port = port_number(text)
    return (host.strip("[]"), port) if host and port is not None else None


def port_number(text: str) -> int | None:
    """Return the number of a port; None where it is none."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_PORT))
    return int(text) if is_number and 0 < int(text) <= MAX_PORT else None
