"""Starts the cluster's processes and finds them again, without ever taking a stranger for one of them.

Each carries a mark in its environment, which its children inherit. A process with the mark of a cluster belongs to that
cluster, whatever became of the files that recorded it. Containers have environments of their own, but die with their node.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dev.localcluster.paths import Paths

MARK: Final = "TRAINYARD_LOCALCLUSTER"
PROC: Final = Path("/proc")
PF_EXITING: Final = 0x4
"""The flag of the kernel for a process that is exiting: it has no environment any more, and is no zombie yet."""
DEATH_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for all time: a number alone is used again after its process has died, or after a reboot."""

    pid: int
    started: int  # clock ticks after boot
    boot: str


def identify(pid: int, proc: Path = PROC) -> Identity | None:
    """Return the identity of the process with this ID; empty if there is none, or only one that is exiting or a zombie."""
    try:
        # The name in brackets may itself hold spaces and brackets, so count from the last one.
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in "ZX" or int(fields[6]) & PF_EXITING:
        return None
    return Identity(pid, int(fields[19]), boot)


def marked_environment(paths: Paths) -> dict[str, str]:
    """The environment for everything that must not outlive the cluster."""
    return {**os.environ, MARK: str(paths.state)}


def start(paths: Paths, name: str, argv: Sequence[str | Path], *, environment: Mapping[str, str] | None = None) -> int:
    """Starts a daemon in a session of its own, its output in the log file of its name."""
    paths.logs.mkdir(parents=True, exist_ok=True)
    paths.pids.mkdir(parents=True, exist_ok=True)
    with (paths.logs / f"{name}.log").open("ab") as log:
        # Not waited for: it goes on after this command, and init inherits it.
        process = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**marked_environment(paths), **(environment or {})},
            cwd=paths.state,
            start_new_session=True,
        )
    if identity := identify(process.pid):
        record = {"pid": identity.pid, "started": identity.started, "boot": identity.boot}
        (paths.pids / name).write_text(json.dumps(record))
    process.returncode = 0  # else its garbage collection warns that the process still runs
    return process.pid


def alive(paths: Paths, name: str, proc: Path = PROC) -> int | None:
    """The process's number, if it is still the very process that was started."""
    try:
        identity = Identity(**json.loads((paths.pids / name).read_text()))
    except (FileNotFoundError, ValueError, TypeError):  # a crash may leave half a file
        return None
    return identity.pid if identify(identity.pid, proc) == identity else None


def has_mark(paths: Paths, pid: int, proc: Path = PROC) -> bool:
    """Is it of this cluster and alive? A zombie has no environment any more."""
    try:
        environment = (proc / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return f"{MARK}={paths.state}".encode() in environment.split(b"\0")


def children(pid: int, proc: Path = PROC) -> list[int]:
    """The processes that it forked and that still live."""
    try:
        return [int(child) for child in (proc / str(pid) / "task" / str(pid) / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def marked(paths: Paths, proc: Path = PROC) -> list[int]:
    """All living processes with this cluster's mark, but the asking one."""
    pids = [int(folder.name) for folder in proc.iterdir() if folder.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and has_mark(paths, pid, proc)]


def kill(pids: Sequence[int], paths: Paths) -> None:
    """SIGKILL to each that has the mark, and waits until all are gone. A dead number is fine.

    Raises:
        LocalClusterError: one hangs in the kernel.
    """
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # Looked at with the process held, so that the number cannot pass to another meanwhile.
            if has_mark(paths, pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)
    await_end(pids, paths)


def await_end(pids: Sequence[int], paths: Paths) -> None:
    """Waits for processes that must be dying.

    Raises:
        LocalClusterError: one hangs in the kernel.
    """
    deadline = time.monotonic() + DEATH_SECONDS
    while left := [pid for pid in pids if has_mark(paths, pid)]:
        if time.monotonic() > deadline:
            raise LocalClusterError(f"processes {left} did not die of SIGKILL within {DEATH_SECONDS:.0f} s")
        time.sleep(0.02)


def kill_all(paths: Paths) -> None:
    """Until none is left: one that was just being forked is found in the next round."""
    while pids := marked(paths):
        kill(pids, paths)
