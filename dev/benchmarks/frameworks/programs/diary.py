"""What each rank writes down, and its checkpoints. It is copied into the folder that all pods share: standard library alone."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 1_000_000
"""More steps than any run reaches."""
STEP_SECONDS = 0.1
WEIGHTS = 4096


class Diary:
    """Writes the milestones of this process, one line of JSON each, and reports its steps to an agent, if there is one.

    The process keeps its diary open: that is how the benchmark finds it.
    """

    def __init__(self, folder: Path, began: float) -> None:
        # A remote start by ssh brings none of the container's variables.
        pod = os.environ.get("BENCH_POD") or socket.gethostname()
        name = f"{pod}-{os.getpid()}-{time.monotonic_ns()}.jsonl"
        self._file = (folder / "lives" / name).open("w", buffering=1)
        try:
            from trainyard_agent import progress  # noqa: PLC0415 - its import counts as part of the start
        except ImportError:
            self._progress: Any = None
        else:
            self._progress = progress
        self.write("started", at=began, pod=pod)
        self.write("imported")

    def write(self, what: str, *, at: float | None = None, **more: object) -> None:
        """Write a milestone with the current time, or `at`."""
        self._file.write(json.dumps({"what": what, "at": time.monotonic() if at is None else at, **more}) + "\n")

    def connected(self, rank: int, size: int, group: str) -> None:
        """Write that this rank has exchanged data with all others. `group` is the same for all of them, and for no other group."""
        self.write("connected", rank=rank, size=size, group=group)

    def step(self, step: int) -> None:
        """Write that a step is complete."""
        self.write("step", step=step)
        if self._progress is not None:
            self._progress(step, total=STEPS)


def save(folder: Path, step: int, weights: list[float]) -> None:
    """Write a checkpoint atomically."""
    partial = folder / "checkpoint.partial"
    with partial.open("w") as file:
        json.dump({"step": step, "weights": weights}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / "checkpoint.json")


def load(folder: Path) -> tuple[int, list[float]]:
    """Return the step and the weights of the checkpoint; 0 and new weights where there is none."""
    try:
        found = json.loads((folder / "checkpoint.json").read_text())
    except FileNotFoundError:
        return 0, [0.0] * WEIGHTS
    return found["step"], found["weights"]
