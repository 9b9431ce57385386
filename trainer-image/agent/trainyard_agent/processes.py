"""The processes below this one: none gets lost, none is left over. Linux only; decides nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
"""A shell that waits for its command passes no signal on to it."""
GONE = frozenset("ZX")
"""States of a process that has ended and is yet to be reaped."""


def adopt_orphans() -> None:
    """Become the parent of every process below whose own parent ends. PID 1 is that anyway. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getpid() != 1 and libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
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


def descendants(root: int) -> set[int]:
    """The PIDs of all processes below `root` that have not ended."""
    parents: dict[int, int] = {}
    living: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (found := _stat(int(entry.name))) is not None:
            _, state, parents[int(entry.name)] = found
            if state not in GONE:
                living.add(int(entry.name))
    return {pid for pid in living if _is_below(pid, root, parents)}


def pass_on(number: int, pid: int) -> list[int]:
    """Send a signal to a process; to a shell, also to what it waits for. Returns the PIDs of those that were told."""
    found = _stat(pid)
    targets = [pid]
    if found is not None and found[0] in SHELLS:
        targets += [child for child in descendants(pid) if (other := _stat(child)) is not None and other[2] == pid]
    for target in targets:
        _send(number, target)
    return targets


def kill_all(root: int, patience: float, reaped: Callable[[], object]) -> bool:
    """Kill everything below `root`, and what it starts meanwhile. Returns whether nothing is left after `patience` seconds.

    A process that is stuck in the kernel (a dead file server, say) goes only when that lets it go. `reaped` is called in
    between, to reap.
    """
    end = time.monotonic() + patience
    while left := descendants(root):
        for pid in left:
            _send(signal.SIGKILL, pid)
        reaped()
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    reaped()
    return True


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    # Read one after the other, the parents can form a ring where a PID was used again meanwhile.
    for _ in range(len(parents)):
        pid = parents.get(pid, 0)
        if pid == root:
            return True
        if pid == 0:
            return False
    return False


def _stat(pid: int) -> tuple[str, str, int] | None:
    """Name, state and parent."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    # The name stands in brackets and may hold brackets and spaces itself.
    before, _, after = text.rpartition(")")
    state, parent, *_ = after.split()
    return before.partition("(")[2], state, int(parent)


def _send(number: int, pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
