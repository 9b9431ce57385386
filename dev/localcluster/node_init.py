"""The first process of a node, in namespaces of its own: sets the node up, then keeps its daemons running.

It does not end by itself. As process 1 it takes every other process of the node with it when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster import node_spec
from dev.localcluster.say import complain

if TYPE_CHECKING:
    from dev.localcluster.node_spec import NodeSpec

POLL_SECONDS: Final = 0.02
RESTART_SECONDS: Final = 0.5
PID_FOLDER: Final = Path("/run/daemons")


def main() -> None:
    """Runs the node whose specification is the one argument."""
    spec = node_spec.read(Path(sys.argv[1]))
    _mount(spec)
    socket.sethostname(spec.name)
    _join_network(spec)
    _run_daemons(spec)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)


def _mount(spec: NodeSpec) -> None:
    """A /run that is empty at each boot, and the folders whose places are fixed in the programs."""
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")
    PID_FOLDER.mkdir()
    for folder, place in spec.folders:
        on_disk = Path(spec.disk) / folder
        on_disk.mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", str(on_disk), place)


def _join_network(spec: NodeSpec) -> None:
    """Waits for the cable, which the host can only plug in once this namespace is there."""
    _run("ip", "link", "set", "lo", "up")
    # Not by /sys, which goes on showing the host's interfaces.
    while "eth0" not in {name for _, name in socket.if_nameindex()}:
        time.sleep(POLL_SECONDS)
    _run("ip", "address", "add", f"{spec.address}/{spec.gateway_prefix}", "dev", "eth0")
    _run("ip", "link", "set", "eth0", "up")
    for destination, next_hop in spec.routes:
        _run("ip", "route", "add", destination, "via", next_hop)
    for destination in spec.device_routes:
        _run("ip", "route", "add", destination, "dev", "eth0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _run_daemons(spec: NodeSpec) -> None:
    """Starts the daemons, starts again what ends, and reaps the orphans that process 1 inherits."""
    running: dict[int, str] = {}
    commands = dict(spec.daemons)
    for position, name in enumerate(commands):
        running[_start(name, commands[name], spec)] = name
        if position == 0:
            _await_socket(Path(spec.wait_for_socket))
    while True:
        pid, _ = os.wait()
        if name := running.pop(pid, ""):
            complain(f"{name} exited; restarting it")
            time.sleep(RESTART_SECONDS)
            running[_start(name, commands[name], spec)] = name


def _await_socket(path: Path) -> None:
    while True:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
            return
        time.sleep(POLL_SECONDS)


def _start(name: str, command: tuple[str, ...], spec: NodeSpec) -> int:
    log = f"{spec.logs}/{spec.name}.{name}.log"
    output = (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    # Not by subprocess: its objects would wait for their own children, which the loop above already does.
    pid = os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[output, (os.POSIX_SPAWN_DUP2, 1, 2)],
        setsid=True,
    )
    (PID_FOLDER / name).write_text(str(pid))
    return pid


if __name__ == "__main__":
    main()
