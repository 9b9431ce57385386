"""Where a port is open: on all of the machine's addresses, of both families where it has both."""

import socket

EVERYWHERE = "::"
"""All addresses, those of IPv4 too; on a machine without IPv6 those of IPv4 alone."""
BACKLOG = 1024


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, and does not block. `host` is an address or a name; port 0 takes any free one. Raises OSError and UnicodeError."""
    both = host == EVERYWHERE and socket.has_dualstack_ipv6()
    if host == EVERYWHERE and not both:
        host = "0.0.0.0"  # noqa: S104 - all addresses, as asked for
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    listening.settimeout(0)
    return listening
