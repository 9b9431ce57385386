"""Notice that the machine at the other end of a connection is lost."""

from __future__ import annotations

import socket

KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 11_000))
"""A lost machine is noticed within 11 seconds. The last is in milliseconds, and counts from what was sent."""


def keep_alive(connection: socket.socket) -> None:
    """Set the options of KEEPALIVE that this system has. Raises OSError."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
