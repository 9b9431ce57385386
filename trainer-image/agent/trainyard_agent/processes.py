"""The processes below this one: none gets lost, none is left over. Linux only; decides nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
"""A shell that waits for its command passes no signal on to it."""
STOPPED = frozenset("Tt")
STUCK = "D"
GONE = frozenset("ZX")
"""States of a process that has ended and is yet to be reaped."""


class _Process(NamedTuple):
    name: str
    state: str
    parent: int


def adopt_orphans() -> None:
    """Become the parent of every process below whose own parent ends. PID 1 is that anyway. Raises OSError."""
    if os.getpid() == 1:
        return
    import ctypes  # noqa: PLC0415 - not every Python has it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def reap() -> Iterator[tuple[int, int]]:
    """The PID and the exit code (128 + n after signal n, as a shell has it) of each child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def lives(pid: int) -> bool:
    """Whether this process has not ended."""
    process = _stat(pid)
    return process is not None and process.state not in GONE


def is_stopped(pid: int) -> bool:
    """Whether this process does nothing, by somebody's order."""
    process = _stat(pid)
    return process is not None and process.state in STOPPED


def silence(pid: int) -> str:
    """Why a process does not answer, where it is not free to; else nothing."""
    process = _stat(pid)
    if process is None or process.state not in STOPPED | {STUCK}:
        return ""
    return "(stuck in the kernel: a disk or file server)" if process.state == STUCK else "(stopped by a signal)"


def descendants(root: int, spared: Collection[int] = frozenset()) -> set[int]:
    """The PIDs of all processes below `root` that have not ended, but for the `spared` and what is below these."""
    return {pid for pid, process in _below(root, spared).items() if process.state not in GONE}


def pass_on(number: int, pid: int) -> list[int]:
    """Send a signal to a process; to a shell, also to what it waits for. Returns the PIDs of these.

    What only reads what another one writes, as `tee` does, is left to its end: it comes with the writer's, whose words it keeps.
    """
    table, concerned, readers = _table(), [pid], set[int]()
    if pid in table and table[pid].name in SHELLS:
        children = [child for child, process in table.items() if process.parent == pid and process.state not in GONE]
        concerned += children
        written = {pipe for child in children for pipe in (_pipe(child, 1), _pipe(child, 2))} - {None}
        readers = {child for child in children if _pipe(child, 0) in written and not _catches(child, number)}
    for each in concerned:
        if each not in readers:
            _send(number, each)
    return concerned


def ask(number: int, pid: int) -> None:
    """Send a signal to the first processes from `pid` downwards that catch it; to none where none does: it would end by it."""
    table, level = _table(), [pid]
    while level:
        if catching := [each for each in level if _catches(each, number)]:
            for each in catching:
                _send(number, each)
            return
        level = [child for child, process in table.items() if process.parent in level and process.state not in GONE]


def kill_all(
    root: int, patience: float, reap_them: Callable[[], object], spared: Collection[int] = frozenset()
) -> None:
    """Kill everything below `root` but the `spared` and what is below these, and what it starts meanwhile, until nothing is left, for `patience` seconds at most.

    A process that is stuck in the kernel (a dead file server, say) goes only when that lets it go, and another user's not at all.
    """
    end, before = time.monotonic() + patience, set[int]()
    # One that has just ended may have started another that this look has missed: each is the parent of the next, in a chain of them.
    while (left := _below(root, spared).keys()) and time.monotonic() < end:
        for pid in left:
            _send(signal.SIGKILL, pid)
        reap_them()
        if left <= before:
            time.sleep(0.005)
        before |= left


def _table() -> dict[int, _Process]:
    """All processes, by PID."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return {pid: process for pid in pids if (process := _stat(pid)) is not None}


def _below(root: int, spared: Collection[int]) -> dict[int, _Process]:
    """All processes below `root` but for the `spared` and what is below these, those too that are yet to be reaped."""
    table = _table()
    for pid in spared:
        table.pop(pid, None)
    return {pid: process for pid, process in table.items() if _is_below(pid, root, table)}


def _is_below(pid: int, root: int, table: dict[int, _Process]) -> bool:
    # Read one after the other, the parents can form a ring where a PID was used again meanwhile.
    for _ in range(len(table)):
        if pid not in table:
            return False
        pid = table[pid].parent
        if pid == root:
            return True
    return False


def _stat(pid: int) -> _Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    # The name stands in brackets and may hold brackets and spaces itself.
    before, _, after = text.rpartition(")")
    state, parent, *_ = after.split()
    return _Process(before.partition("(")[2], state, int(parent))


def _pipe(pid: int, descriptor: int) -> str | None:
    """The pipe behind a descriptor of a process, or None where it is another kind of file."""
    try:
        file = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return None
    return file if file.startswith("pipe:") else None


def _catches(pid: int, number: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _send(number: int, pid: int) -> None:
    # Another user's are not ours to end: by sudo, or where this user lacks the right to. They end with the container.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
