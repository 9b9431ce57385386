"""The addresses of listening sockets."""

import socket

import pytest

from trainyard.coordinator.address import ALL_ADDRESSES, open_listening_socket

IPV6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


def reached(at: socket.socket, address: str) -> bool:
    try:
        socket.create_connection((address, at.getsockname()[1]), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "by_ipv4", "by_ipv6"),
    [
        pytest.param(ALL_ADDRESSES, True, True, marks=IPV6, id="everywhere, by both"),
        pytest.param("0.0.0.0", True, False, id="by IPv4 alone, as asked for"),  # noqa: S104 - the point of the test
        pytest.param("127.0.0.1", True, False, id="one address"),
        pytest.param("::1", False, True, marks=IPV6, id="one address of IPv6"),
    ],
)
def test_addresses_that_reach_the_port(host: str, *, by_ipv4: bool, by_ipv6: bool) -> None:
    with open_listening_socket(host, 0) as at:
        assert (reached(at, "127.0.0.1"), reached(at, "::1")) == (by_ipv4, by_ipv6)


def test_a_machine_without_ipv6_is_reached_by_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with open_listening_socket(ALL_ADDRESSES, 0) as at:
        assert (at.family, reached(at, "127.0.0.1")) == (socket.AF_INET, True)


def test_nothing_waits_for_a_connection() -> None:
    with open_listening_socket("127.0.0.1", 0) as at, pytest.raises(BlockingIOError):
        at.accept()
