"""The training program of every system: four ranks all-reduce a gradient and write a checkpoint every few steps.

Each process writes its milestones to its own file in the shared folder. Times are those of the monotonic clock, which all
containers share. It installs no signal handler.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGAN = time.monotonic()

# The benchmark measures the import time.
import torch.distributed  # noqa: E402 - see above

IMPORTED = time.monotonic()

try:
    from trainyard_agent import must_stop, progress
except ImportError:  # no agent runs this process

    def must_stop(step: int) -> bool:  # noqa: ARG001 - as the agent's
        """Return whether all ranks must stop after this step."""
        return False

    def progress(
        step: int | None = None,
        *,
        phase: str = "train",
        total: int | None = None,
        loss: float | None = None,
        compute_seconds: float | None = None,
        measured: Mapping[str, float] | None = None,
    ) -> None:
        """Report the progress of this rank."""


STEPS = 1_000_000
"""More steps than any run reaches."""
STEP_SECONDS = 0.1
SAVED = 90
"""Exit code of a rank that stopped on request, with a checkpoint."""
WEIGHTS = 4096


class Diary:
    """Writes the milestones of this process, one line of JSON each."""

    def __init__(self, folder: Path, pod: str) -> None:
        self._file = (folder / f"{pod}-{os.getpid()}-{time.monotonic_ns()}.jsonl").open("w", buffering=1)

    def write(self, what: str, *, at: float | None = None, **more: object) -> None:
        """Write a milestone with the current time, or `at`."""
        self._file.write(json.dumps({"what": what, "at": time.monotonic() if at is None else at, **more}) + "\n")


def save(path: Path, step: int, weights: Any) -> None:
    """Write a checkpoint atomically."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save({"step": step, "weights": weights}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def main(folder: Path, checkpoint_every: int) -> None:
    """Train until a fault."""
    rank, pod = int(os.environ["RANK"]), os.environ["BENCH_POD"]
    # The benchmark finds the process of a rank by this name.
    Path("/proc/self/comm").write_text(f"bench-rank-{rank}")
    diary = Diary(folder / "lives", pod)
    diary.write("started", at=BEGAN, rank=rank, pod=pod)
    diary.write("imported", at=IMPORTED)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    group = [uuid.uuid4().hex]
    torch.distributed.broadcast_object_list(group)
    diary.write("connected", group=group[0], size=torch.distributed.get_world_size())
    path = folder / "checkpoint.pt"
    state = [torch.load(path, weights_only=True) if rank == 0 and path.exists() else None]
    torch.distributed.broadcast_object_list(state)
    first, weights = (state[0]["step"], state[0]["weights"]) if state[0] else (0, torch.zeros(WEIGHTS))
    diary.write("loaded", step=first)
    flag, agrees = folder / f"raise-{rank}", bool(os.environ.get("BENCH_AGREES"))
    for step in range(first + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        gradient = weights / 2 + rank + step
        torch.distributed.all_reduce(gradient)
        weights -= 1e-6 * gradient
        diary.write("step", step=step)
        progress(step, total=STEPS)
        stop = agrees and must_stop(step)
        if rank == 0 and (stop or step % checkpoint_every == 0):
            save(path, step, weights)
        if stop:
            sys.exit(SAVED)
        if flag.exists():
            flag.unlink()
            raise RuntimeError(f"rank {rank} fails on request at step {step}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
