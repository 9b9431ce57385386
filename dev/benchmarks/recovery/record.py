"""What was measured, on file after each run: an interruption loses nothing, and what it left can be measured later."""

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from dev.benchmarks.recovery.results import Run, plain, rows
from dev.benchmarks.scale.api import BenchmarkError
from dev.localcluster.tools import KUBERNETES_VERSION

Machine = Mapping[str, int | str | None]
"""Where and when a stretch of runs was measured."""


def machine() -> Machine:
    """Return this machine, now."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kubernetes": KUBERNETES_VERSION,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


class Record:
    """The rows go into `out`, every run into the file OUT-runs.json beside it.

    Args:
        out: such as recovery.json.
        resume: whether to go on with the runs that are on file.

    Raises:
        BenchmarkError: there is nothing to go on with.
    """

    def __init__(self, out: Path, machine: Machine, *, resume: bool = False) -> None:
        self._rows, self._all = out, out.with_name(f"{out.stem}-runs.json")
        self.runs: list[Run] = []
        self._machines: list[Machine] = []
        if resume:
            self._read()
        self._machines.append(machine)

    def add(self, run: Run) -> None:
        """One run more; both files tell of it from here on."""
        self.runs.append(run)
        self._rows.write_text(json.dumps([plain(row) for row in rows(self.runs)], indent=1) + "\n")
        every = {"machines": self._machines, "runs": [asdict(run) for run in self.runs]}
        self._all.write_text(json.dumps(every, indent=1) + "\n")

    def missing(self, system: str, repeat: int, faults: list[str]) -> list[str]:
        """Those of `faults` that this repeat has not seen yet."""
        done = {run.fault for run in self.runs if (run.system, run.repeat) == (system, repeat)}
        return [fault for fault in faults if fault not in done]

    def _read(self) -> None:
        try:
            every = json.loads(self._all.read_text())
            self.runs = [Run(**run) for run in every["runs"]]
            self._machines = [dict(machine) for machine in every["machines"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BenchmarkError(f"{self._all} holds no runs to go on with: {error!r}; leave --resume out") from error
