"""Open listening sockets, on all addresses of the machine by default, in both families where it has both."""

import socket

ALL_ADDRESSES = "::"
"""All addresses of both families; on a machine without IPv6 all IPv4 addresses."""
LISTEN_BACKLOG = 1024


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Return a non-blocking listening socket. `host` is an address or a name; port 0 takes any free port. Raises
    OSError and UnicodeError.
    """
    dual_stack = host == ALL_ADDRESSES and socket.has_dualstack_ipv6()
    if host == ALL_ADDRESSES and not dual_stack:
        host = "0.0.0.0"  # noqa: S104 - all addresses, as asked for
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG, dualstack_ipv6=dual_stack)
    listening.settimeout(0)
    return listening
