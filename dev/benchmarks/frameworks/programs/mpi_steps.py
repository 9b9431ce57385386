"""MPI, started by mpirun as `python3 -m mpi4py`: an exception in one rank ends all."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

BEGAN = time.monotonic()

# The benchmark measures the import time.
import numpy as np  # noqa: E402 - see above
from mpi4py import MPI  # noqa: E402 - see above

from dev.benchmarks.frameworks.programs.diary import STEP_SECONDS, STEPS, Diary, load, save  # noqa: E402 - see above


def main(folder: Path, checkpoint_every: int) -> None:
    """Train until a fault."""
    diary = Diary(folder, BEGAN)
    world = MPI.COMM_WORLD
    diary.connected(world.rank, world.size, world.bcast(uuid.uuid4().hex))
    first, values = world.bcast(load(folder))
    weights = np.array(values)
    diary.write("loaded", step=first)
    for step in range(first + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        gradient = weights / 2 + world.rank + step
        mean = np.empty_like(gradient)
        world.Allreduce(gradient, mean)
        weights -= 1e-6 * mean
        diary.step(step)
        if world.rank == 0 and step % checkpoint_every == 0:
            save(folder, step, weights.tolist())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
