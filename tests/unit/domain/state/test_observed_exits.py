"""What a termination message makes of the exit of a container."""

import json

import pytest

from tests.unit.domain.observing import AT, containers, ended, pod
from trainyard.domain.state.observe import pod_view
from trainyard.domain.state.observed_exits import MESSAGE_LIMIT
from trainyard.domain.state.termination import Exit, Kind


def test_message_keeps_its_end() -> None:
    seen = pod_view(pod({"containerStatuses": containers(ended(message="x" * 5000 + "boom"))}))
    assert seen.exit is not None
    assert len(seen.exit.message) == MESSAGE_LIMIT
    assert seen.exit.message.endswith("boom")


def agents(text: str = "log", **fields: object) -> str:
    """A termination message of the agent."""
    return f"{json.dumps({'trainyard': 1, 'kind': 'failed', **fields}, separators=(',', ':'))}\n{text}"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (agents(rank=3, exitCode=137, oomKills=1, oomAgeSeconds=0), "OOMKilled"),
        (agents(exitCode=1, oomKills=2, oomAgeSeconds=29), "OOMKilled"),
        (agents(exitCode=1, oomKills=2, oomAgeSeconds=300), "Error"),
        (agents("out of memory: the kernel killed 1 of its processes", exitCode=1), "Error"),
        ("rank 3 exited with code 1: out of memory: the kernel killed 1 of its processes", "Error"),
    ],
)
def test_out_of_memory_is_the_agents_data(message: str, reason: str) -> None:
    """To the node only the death of the first process is one of the container."""
    seen = pod_view(pod({"containerStatuses": containers(ended(137, message=message))}))
    assert seen.exit is not None
    assert seen.exit.reason == reason


def test_exit_holds_the_agents_data() -> None:
    message = agents(
        "Traceback\nValueError: x",
        rank=19,
        exitCode=1,
        step=7,
        exception="ValueError: x",
        location="a.py:1 in f",
        cause="program",
        peerLost=True,
        hardwareError="uncorrectable ECC",
    )
    line = "rank 19 exited with code 1: ValueError: x"
    assert pod_view(pod({"containerStatuses": containers(ended(1, message=message))})).exit == Exit(
        AT,
        1,
        "Error",
        f"{line}\nTraceback\nValueError: x",
        step=7,
        rank=19,
        kind=Kind.FAILED,
        headline=line,
        location="a.py:1 in f",
        exception="ValueError",
        cause="program",
        peer_lost=True,
        hardware_error="uncorrectable ECC",
    )


def test_long_message_keeps_headline_and_end() -> None:
    for text in ("x" * 4000 + "boom", "rank 1 exited with code 1: x" + "x" * 4000 + "boom"):
        message = agents(text, rank=1, exitCode=1, exception="x")
        seen = pod_view(pod({"containerStatuses": containers(ended(1, message=message))})).exit
        assert seen is not None
        assert len(seen.message) == MESSAGE_LIMIT
        assert seen.message.startswith("rank 1 exited with code 1: x\nx")
        assert seen.message.endswith("boom")
