"""`python -m dev.benchmarks.training.writer_share`: measure what a writer takes from a training loop, as a thread or as a process.

The loop makes small steps, which need Python's lock all the time: a GPU's training is one while it queues kernels. A checkpoint is always
being written meanwhile. Turns without checkpoints, with a thread and with a process alternate, and each prints a line of JSON.
With a core to spare, what a thread takes beyond a process is what it takes by Python's lock.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import torch

from dev.benchmarks.options import turns
from trainyard_torch import CheckpointPolicy, Checkpoints

NOTHING: Final = "no writer"
THREAD: Final = "thread"
PROCESS: Final = "process"
TENSOR: Final = 2**20
"""Elements of one tensor of the state: 4 MB."""


def steps(seconds: float, checkpoints: Checkpoints | None, state: dict[str, torch.Tensor]) -> dict[str, float]:
    """Make small steps beside the writer. Return the steps and checkpoints per second, and the share of the time in `save`."""
    weights, done, saved, stalled = torch.ones(8), 0, 1, 0.0
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        if checkpoints and checkpoints._pending and checkpoints._pending.done():  # noqa: SLF001 - `save` would wait for it
            saved += 1
            checkpoints.save(saved, state)
            stalled += time.perf_counter() - now
        for _ in range(100):
            weights = weights * 1.0
        done += 1
    taken = time.perf_counter() - began
    # Of the time beside the writer: the copy of the state blocks the training in both ways.
    return {
        "steps_per_second": done / (taken - stalled),
        "checkpoints_per_second": (saved - 1) / taken,
        "stalled": stalled / taken,
    }


def turn_of(how: str, seconds: float, state: dict[str, torch.Tensor], folder: str) -> dict[str, float]:
    """Return the figures of one turn."""
    if how == NOTHING:
        return steps(seconds, None, state)
    checkpoints = Checkpoints(folder, policy=CheckpointPolicy(process=how == PROCESS))
    checkpoints.load(state)
    # The first one takes longer: a process imports torch.
    checkpoints.save(0, state, wait=True)
    checkpoints.save(1, state)
    found = steps(seconds, checkpoints, state)
    checkpoints.close()
    return found


def main() -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.training.writer_share", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--tensors", type=int, default=25, help="of 4 MB")
    parser.add_argument("--folder", default="/var/tmp", help="one of our own is made in it")  # noqa: S108
    options = parser.parse_args()
    torch.set_num_threads(1)
    state = {f"w{number}": torch.ones(TENSOR) for number in range(options.tensors)}
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir=options.folder) as folder:
        for turn in range(options.repeats):
            for how in turns([NOTHING, THREAD, PROCESS], turn):
                figures = turn_of(how, options.seconds, state, str(Path(folder) / f"{how}-{turn}"))
                print(json.dumps({"share": {"how": how, "turn": turn, **figures}}), flush=True)  # noqa: T201 - the figures
    return 0


if __name__ == "__main__":
    sys.exit(main())
