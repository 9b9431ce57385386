"""What processes have used, out of /proc."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dev.localcluster.processes import PROC, children

TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process or several."""

    cpu_s: float = 0.0
    peak_mib: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.cpu_s + other.cpu_s, self.peak_mib + other.peak_mib)


def parse(stat: str, status: str) -> Usage:
    """From the texts of /proc/PID/stat and /proc/PID/status. A child that has ended counts for the one who waited for it."""
    # The name in brackets may itself hold spaces and brackets, so count from the last one: utime, stime, cutime, cstime.
    ticks = sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])
    peaks = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
    return Usage(ticks / TICKS, sum(peaks) / 1024)


def of(pids: Iterable[int], proc: Path = PROC) -> Usage:
    """Of these processes and all that they have forked. One that is gone counts nothing."""
    total = Usage()
    for pid in pids:
        try:
            total += parse((proc / str(pid) / "stat").read_text(), (proc / str(pid) / "status").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += of(children(pid, proc), proc)
    return total


def seconds(pids: Sequence[int]) -> float:
    """The CPU time of these processes so far."""
    return of(pids).cpu_s
