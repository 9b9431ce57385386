"""Run the command under test, and read what a cluster leaves on the host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev.localcluster import processes
from dev.localcluster.paths import from_environment

if TYPE_CHECKING:
    from collections.abc import Callable

NODES, GPUS = 2, 4
PATHS = from_environment()
REPOSITORY = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "dev.localcluster")
SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")


def localcluster(
    *arguments: object, prefix: tuple[str, ...] = (), cache: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, *COMMAND, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, **({"XDG_CACHE_HOME": str(cache)} if cache else {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def up(cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    return localcluster("up", "--nodes", NODES, "--gpus-per-node", GPUS, cache=cache)


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    [sentence] = done.stderr.splitlines()
    return sentence


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def host_snapshot() -> dict[str, Any]:
    return {
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "firewall": output("nft", "list", "ruleset"),
        "routes": output("ip", "-4", "route"),
        "cgroups": sorted(map(str, Path("/sys/fs/cgroup").glob("**/trainyard*"))),
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if "trainyard/cluster" in line],
        "processes": processes.marked(PATHS),
        "sysctls": {name: (Path("/proc/sys") / name).read_text() for name in SYSCTLS},
        "mount points": [Path(place).exists() for place in ("/var/lib/kubelet", "/var/lib/cni")],
        "state": PATHS.state.exists(),
    }


def eventually(condition: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.1)
