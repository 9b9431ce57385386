"""Addresses of pods, as operators and users write them."""

import socket

import pytest

from trainyard_agent.addresses import connect, host_and_port


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("head-0.job:6379", ("head-0.job", 6379)),
        ("[fd00::7]:6379", ("fd00::7", 6379)),
        ("head-0.job", None),
        (":6379", None),
        ("head:0", None),
        ("head:65536", None),
        ("head:" + "9" * 5000, None),
        ("head:٣", None),
        ("", None),
    ],
)
def test_address_has_host_and_port(text: str, parts: tuple[str, int] | None) -> None:
    assert host_and_port(text) == parts


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".b"])
def test_host_that_is_no_name_does_not_answer(host: str) -> None:
    assert "label" in (connect(host, 6379) or "")


def test_listener_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert connect("127.0.0.1", listener.getsockname()[1]) is None
