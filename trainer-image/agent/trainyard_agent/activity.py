"""Tell ranks that still work, for example write a checkpoint, from ranks that wait for a lost peer. Reads `/proc`, decides nothing.

A rank that is blocked in a collective runs no handler of Python, and would never exit. gloo waits for a lock. NCCL
spins on the GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from trainyard_agent import processes

WINDOW_SECONDS = 0.5
"""How often to look."""
MIN_CPU_SHARE = 0.05
"""Of one core. Threads that look for a timeout now and then use less."""
MIN_WRITTEN_BYTES = 4096
MIN_FAULTS = 64
"""New pages of memory, as a copy of the model takes them."""
BUSY_STATES = frozenset("RD")
SLEEPS = {
    "x86_64": {"35": False, "230": False, "23": True, "270": True},
    "aarch64": {"101": False, "115": False, "72": True},
}
"""The system calls that sleep, by machine. True: only where they wait for no file, as select() with a timeout alone."""
GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


class _Sample(NamedTuple):
    ticks: int
    written: int
    faults: int


class Activity:
    """Watches some ranks, each with the processes below it."""

    def __init__(
        self, pids: Iterable[int], clock: Callable[[], float] = time.monotonic, *, spins_on_gpu: bool = True
    ) -> None:
        """`spins_on_gpu`: whether a rank with a GPU that uses its CPU may only wait."""
        self._pids, self._clock = [*pids], clock
        self._samples: dict[int, _Sample] = {}
        self._looked_at = self._active_at = clock()
        self._on_gpu = {pid for pid in self._pids if spins_on_gpu and _opens_gpu(pid)}
        table = processes.processes_by_pid()
        for pid in self._pids:
            self._samples[pid] = _sample(pid, table)

    def idle_seconds(self) -> float:
        """Return for how long none of the ranks has done anything but wait."""
        now = self._clock()
        seconds = now - self._looked_at
        if seconds >= WINDOW_SECONDS:
            self._looked_at = now
            table = processes.processes_by_pid()
            active = [pid for pid in self._pids if self._is_active(pid, seconds, table)]
            self._active_at = now if active else self._active_at
        return now - self._active_at

    def _is_active(self, pid: int, seconds: float, table: Mapping[int, processes.Process]) -> bool:
        before, now = self._samples[pid], _sample(pid, table)
        self._samples[pid] = now
        process = table.get(pid)
        if process is None or process.state in processes.GONE:
            return False
        if now.written - before.written >= MIN_WRITTEN_BYTES or now.faults - before.faults >= MIN_FAULTS:
            return True
        if process.state == processes.UNINTERRUPTIBLE or _sleeps(pid):
            return True
        # A rank that waits for its GPU uses a whole core for that.
        share = (now.ticks - before.ticks) / os.sysconf("SC_CLK_TCK") / seconds
        return pid not in self._on_gpu and (process.state in BUSY_STATES or share >= MIN_CPU_SHARE)


def _sample(pid: int, table: Mapping[int, processes.Process]) -> _Sample:
    pids = {pid, *processes.descendants(pid, table=table)}.intersection(table)
    return _Sample(
        sum(table[each].ticks for each in pids),
        sum(_written(each) for each in pids),
        sum(table[each].faults for each in pids),
    )


def _written(pid: int) -> int:
    """Return the bytes that a process has written to files and pipes."""
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("wchar:")), 0)


def _sleeps(pid: int) -> bool:
    """Return whether the main thread sleeps for a time of its own choice, and does not wait for anything."""
    try:
        number, *words = Path(f"/proc/{pid}/syscall").read_text().split()
    except (OSError, ValueError):
        return False
    only_without_files = SLEEPS.get(os.uname().machine, {}).get(number)
    return only_without_files is False or (only_without_files is True and words[:1] == ["0x0"])


def _opens_gpu(pid: int) -> bool:
    try:
        files = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(file.startswith(GPU_DEVICES) for file in files)
