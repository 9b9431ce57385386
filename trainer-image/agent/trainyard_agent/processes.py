"""Find, signal and reap the processes below this one. Linux only; decides nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
STOPPED = frozenset("Tt")
UNINTERRUPTIBLE = "D"
PIDFD_INFO_EXIT, PIDFD_INFO_SIZE, PIDFD_INFO_CODE_AT = 1 << 3, 64, 60
PIDFD_GET_INFO = 3 << 30 | PIDFD_INFO_SIZE << 16 | 0xFF << 8 | 11
"""The request of linux/pidfd.h, and where its answer has the exit status."""
GONE = frozenset("ZX")
"""States of a process that has exited and is yet to be reaped."""


class Process(NamedTuple):
    """A process, from its line in `/proc`."""

    name: str
    state: str
    parent: int
    faults: int
    """Pages that it has touched for the first time."""
    ticks: int
    """Of the processor, that it has used."""
    exit_status: int
    """As `waitpid` has it; 0 while it runs."""


def adopt_orphans() -> None:
    """Become the parent of every process below whose own parent exits. PID 1 is that anyway. Raises OSError."""
    if os.getpid() == 1:
        return
    import ctypes  # noqa: PLC0415 - not every Python has it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def reap() -> Iterator[tuple[int, int]]:
    """Yield the PID and the exit code (128 + n after signal n, as in a shell) of each child that has exited."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, _code(status)


def exit_code(pid: int) -> int | None:
    """Return the exit code of a process that has exited and whose parent has not noticed yet; None where it is not known."""
    process = stat(pid)
    return _code(process.exit_status) if process is not None and process.state in GONE else None


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor of a process that is there; None where it is not, or the kernel or its sandbox has no pidfd."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def exit_code_of(pidfd: int, pid: int) -> int | None:
    """Return the exit code of a process by its descriptor, also after its parent has reaped it.

    None while it runs, and where it is not known: of a reaped process, only Linux 6.15 and newer know it.
    """
    if (code := exit_code(pid)) is not None:
        return code
    import fcntl  # noqa: PLC0415 - few need it

    answer = bytearray(PIDFD_INFO_SIZE)
    answer[:8] = PIDFD_INFO_EXIT.to_bytes(8, sys.byteorder)
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, answer)
    except OSError:
        return None
    if not int.from_bytes(answer[:8], sys.byteorder) & PIDFD_INFO_EXIT:
        return None
    return _code(int.from_bytes(answer[PIDFD_INFO_CODE_AT:], sys.byteorder, signed=True))


def is_alive(pid: int) -> bool:
    """Return whether this process has not exited."""
    process = stat(pid)
    return process is not None and process.state not in GONE


def is_stopped(pid: int) -> bool:
    """Return whether this process was stopped, by SIGSTOP or a debugger."""
    process = stat(pid)
    return process is not None and process.state in STOPPED


def blocked(pid: int) -> str:
    """Return why a process cannot answer: `stopped` by a signal, or `uninterruptible` in the kernel; else an empty string."""
    process = stat(pid)
    if process is None or process.state not in STOPPED | {UNINTERRUPTIBLE}:
        return ""
    return "uninterruptible" if process.state == UNINTERRUPTIBLE else "stopped"


def descendants(
    root: int, protected: Collection[int] = frozenset(), table: Mapping[int, Process] | None = None
) -> set[int]:
    """Return the PIDs of all processes below `root` that have not exited, but for the `protected` and those below them.

    `table`: all processes, if the caller has just read them.
    """
    return {pid for pid, process in _below(root, protected, table).items() if process.state not in GONE}


def ask(number: int, pid: int) -> None:
    """Send a signal to the first processes from `pid` downwards that catch it; to none where none does, since it would kill them."""
    table, level = processes_by_pid(), [pid]
    while level:
        if catching := [each for each in level if catches(each, number)]:
            for each in catching:
                send(number, each)
            return
        level = [child for child, process in table.items() if process.parent in level and process.state not in GONE]


def describe_wait(pid: int) -> str:
    """Return the state of a process and what it waits for in the kernel: `is in state S (futex_wait_queue)`."""
    process = stat(pid)
    if process is None:
        return "is gone"
    try:
        waits_in = Path(f"/proc/{pid}/wchan").read_text().strip("0\n")
    except OSError:
        waits_in = ""
    return f"is in state {process.state}" + (f" ({waits_in})" if waits_in else "")


def kill_all(
    root: int, patience: float, reap_them: Callable[[], object], protected: Collection[int] = frozenset()
) -> None:
    """Kill all processes below `root`, but for the `protected` and those below them, for `patience` seconds at most.

    Processes that they start meanwhile are killed too. A process that is blocked in the kernel, by a dead file server
    for example, exits only when the kernel lets it. Another user's process cannot be killed.
    """
    end, before = time.monotonic() + patience, set[int]()
    # One that has just exited may have started another that this look has missed, and so on in a chain.
    while (left := _below(root, protected).keys()) and time.monotonic() < end:
        for pid in left:
            send(signal.SIGKILL, pid)
        reap_them()
        if left <= before:
            time.sleep(0.005)
        before |= left


def processes_by_pid() -> dict[int, Process]:
    """Return all processes, by PID."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return {pid: process for pid in pids if (process := stat(pid)) is not None}


def _below(root: int, protected: Collection[int], table: Mapping[int, Process] | None = None) -> dict[int, Process]:
    """Return all processes below `root`, but for the `protected` and those below them; also those that are yet to be reaped."""
    known = processes_by_pid() if table is None else table
    others = {pid: process for pid, process in known.items() if pid not in protected}
    return {pid: process for pid, process in others.items() if _is_below(pid, root, others)}


def _is_below(pid: int, root: int, table: Mapping[int, Process]) -> bool:
    # Read one after the other, the parents can form a cycle where a PID was used again meanwhile.
    for _ in range(len(table)):
        if pid not in table:
            return False
        pid = table[pid].parent
        if pid == root:
            return True
    return False


def stat(pid: int) -> Process | None:
    """Return what `/proc` knows of a process, or None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    # The name is in brackets and may hold brackets and spaces itself.
    before, _, after = text.rpartition(")")
    state, parent, *rest = after.split()
    return Process(
        before.partition("(")[2], state, int(parent), int(rest[5]), int(rest[9]) + int(rest[10]), int(rest[-1])
    )


def pipe(pid: int, descriptor: int) -> str | None:
    """Return the pipe behind a descriptor of a process, or None where it is another kind of file."""
    file = open_file(pid, descriptor)
    return file if file.startswith("pipe:") else None


def open_file(pid: int, descriptor: int) -> str:
    """Return the file behind a descriptor of a process; empty where it cannot be read."""
    try:
        return str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return ""


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for this signal."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def send(number: int, pid: int) -> None:
    """Send a signal to a process that may have exited, or may be another user's."""
    # Another user's processes (of sudo, for example) cannot be signalled. They exit with the container.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def running_children(pid: int, table: Mapping[int, Process]) -> list[int]:
    """Return the PIDs of its children that have not exited."""
    return [child for child, process in table.items() if process.parent == pid and process.state not in GONE]


def arguments(pid: int) -> list[str]:
    """Return the command line of a process; an empty list where it cannot be read."""
    return _strings(f"/proc/{pid}/cmdline")


def environment(pid: int) -> dict[str, str]:
    """Return the variables with which a program was started; an empty mapping where they cannot be read."""
    return {name: value for name, _, value in (each.partition("=") for each in _strings(f"/proc/{pid}/environ"))}


def _code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _strings(file: str) -> list[str]:
    try:
        return [part for part in Path(file).read_text(errors="replace").split("\0") if part]
    except OSError:
        return []
