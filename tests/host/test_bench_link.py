"""The slow link of the training benchmark: its rate, and its removal."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.training import link


def namespaces() -> set[str]:
    return {each["name"] for each in json.loads(link.run("ip", "-json", "netns", "list") or "[]")}


def bucket(name: str) -> dict[str, Any]:
    (found,) = json.loads(link.run("tc", "-n", name, "-json", "qdisc", "show", "dev", link.INTERFACE))
    return dict(found)


def test_link_connects_both_ends_at_its_rate() -> None:
    with link.cable(50):
        assert {bucket(name)["kind"] for name in link.NAMESPACES} == {"tbf"}
        assert {bucket(name)["options"]["rate"] for name in link.NAMESPACES} == {50_000_000 // 8}
        here, there = link.NAMESPACES
        code = "import socket; socket.create_server(('{}', 1234)).accept()"
        listening = subprocess.Popen(link.within(there, ["python3", "-c", code.format(link.ADDRESSES[1])]))
        reach = (
            "import socket, time\nwhile True:\n try:\n  socket.create_connection(('{}', 1234), 5); break\n"
            " except ConnectionRefusedError: time.sleep(0.05)"
        )
        done = subprocess.run(
            link.within(here, ["python3", "-c", reach.format(link.ADDRESSES[1])]), check=False, timeout=30
        )
        assert (done.returncode, listening.wait(30)) == (0, 0)
    assert not {*link.NAMESPACES} & namespaces()


def test_next_run_removes_leftovers_of_a_killed_run() -> None:
    for name in link.NAMESPACES:
        link.run("ip", "netns", "add", name)
    left = subprocess.Popen(link.within(link.NAMESPACES[0], ["sleep", "600"]))
    # Not before it is in there.
    while not link.run("ip", "netns", "pids", link.NAMESPACES[0]).strip():
        assert left.poll() is None
    with link.cable(500):
        assert left.wait(30) == -9
        assert bucket(link.NAMESPACES[1])["options"]["rate"] == 500_000_000 // 8


def test_kernel_errors_are_reported() -> None:
    with pytest.raises(BenchmarkError, match="`ip netns delete no-such-namespace` failed"):
        link.run("ip", "netns", "delete", "no-such-namespace")
    assert os.geteuid() == 0
