"""A slow link on this machine: two network namespaces, a cable between them, and a token bucket (TBF) at both ends.

Nothing outside of the two namespaces is changed. What a run that was killed has left is removed before the next one.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from dev.benchmarks.scale.api import BenchmarkError
from dev.localcluster.host import require_commands, require_root

NAMESPACES: Final = ("trainyard-bench-0", "trainyard-bench-1")
ADDRESSES: Final = ("10.255.255.1", "10.255.255.2")
INTERFACE: Final = "cable"
"""Its name at both ends."""
TICK_SECONDS: Final = 0.004
"""From one look of the kernel at the bucket to the next, at 250 Hz: so much has to fit in."""
LEAST_BURST: Final = 65536
"""Bytes: the largest packet that comes in one piece."""


def burst(mbit: int) -> int:
    """Bytes that the bucket holds."""
    return max(LEAST_BURST, round(mbit * 125_000 * TICK_SECONDS))


@contextmanager
def cable(mbit: int) -> Iterator[None]:
    """The link, with so many Mbit/s in each direction, until the `with` ends.

    Raises:
        BenchmarkError: the kernel or the user cannot have it.
        LocalClusterError: the commands are missing, or the user is not root.
    """
    require_root()
    require_commands({"ip": "iproute2", "tc": "iproute2"})
    remove()
    try:
        for name in NAMESPACES:
            run("ip", "netns", "add", name)
        here, there = NAMESPACES
        # Both ends are made where they belong: a run that is killed leaves nothing outside.
        ends = ("name", INTERFACE, "netns", here, "type", "veth", "peer", "name", INTERFACE, "netns", there)
        run("ip", "link", "add", *ends)
        for name, address in zip(NAMESPACES, ADDRESSES, strict=True):
            run("ip", "-n", name, "address", "add", f"{address}/30", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                run("ip", "-n", name, "link", "set", interface, "up")
            bucket = ("tbf", "rate", f"{mbit}mbit", "burst", str(burst(mbit)), "latency", "100ms")
            run("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", *bucket)
        yield
    finally:
        remove()


def remove() -> None:
    """Neither the namespaces nor what runs in them is there any more."""
    for name in {*NAMESPACES} & {each["name"] for each in json.loads(run("ip", "-json", "netns", "list") or "[]")}:
        for pid in run("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        run("ip", "netns", "delete", name)


def within(name: str, command: list[str]) -> list[str]:
    """The command, in this namespace."""
    return ["ip", "netns", "exec", name, *command]


def run(*command: str) -> str:
    """What it has printed.

    Raises:
        BenchmarkError: it failed. The text is what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
