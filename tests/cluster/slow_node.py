"""Make a node of the local cluster slow: its cable, or the processors of its pods."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from dev.demo.target import python
from dev.localcluster.cgroups import ROOT, group_name, groups

SHAPE = (
    "tc qdisc add dev eth0 root tbf rate 40mbit burst 64kb latency 200ms && echo slow && read -r _; "
    "tc qdisc del dev eth0 root"
)
"""What the node sends. Until standard input ends, which the kernel sees to even where the test is killed."""
PERIOD_MICROSECONDS, SHARE = 100_000, 0.1


@contextmanager
def slow_cable(node: str) -> Iterator[None]:
    """Let a node send 40 Mbit a second, and no more."""
    words = [*python("dev.localcluster"), "node", "exec", node.removeprefix("node"), "--", "sh", "-c", SHAPE]
    # In a session of its own, so that a Ctrl-C at the test leaves it the time to take the limit away.
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"slow\n", "the limit was not taken"
            yield
        finally:
            process.stdin.close()
            assert process.wait(timeout=30) == 0, "the limit may still be there"


@contextmanager
def slow_processors(node: str) -> Iterator[None]:
    """Let all pods of a node have a tenth of a processor together."""
    name, quota = group_name(int(node.removeprefix("node"))), int(PERIOD_MICROSECONDS * SHARE)
    # The quota of version 1, or the maximum of version 2.
    places = {"cpu.cfs_quota_us": (str(quota), "-1"), "cpu.max": (f"{quota} {PERIOD_MICROSECONDS}", "max")}
    [(file, limit, none)] = [
        (group / each, *values)
        for group in groups(ROOT, name)
        for each, values in places.items()
        if (group / each).exists()
    ]
    file.write_text(limit)
    try:
        yield
    finally:
        file.write_text(none)
