"""JAX: the address of the coordinator and the process's number come from variables that both systems set."""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

BEGAN = time.monotonic()

# The benchmark measures the import time.
import jax  # noqa: E402 - see above
import jax.numpy as jnp  # noqa: E402 - see above
import numpy as np  # noqa: E402 - see above
from jax.experimental import multihost_utils  # noqa: E402 - see above
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402 - see above

from dev.benchmarks.frameworks.programs.diary import STEP_SECONDS, STEPS, Diary, load, save  # noqa: E402 - see above


def train(weights: Any, gradients: Any) -> Any:
    """Do one step: the gradients are divided among the processes, the weights are the same in all."""
    return weights - 1e-6 * (weights / 2 + jnp.mean(gradients, axis=0))


def main(folder: Path, checkpoint_every: int) -> None:
    """Train until a fault."""
    diary = Diary(folder, BEGAN)
    size, rank = int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"])
    address = os.environ["COORDINATOR_ADDRESS"].partition(":")[0]
    jax.distributed.initialize(f"{address}:{os.environ['COORDINATOR_PORT']}", size, rank, local_device_ids=[0])
    group = multihost_utils.process_allgather(np.array(secrets.randbelow(2**20), np.int32))
    diary.connected(rank, size, "-".join(map(str, group.tolist())))
    first, values = load(folder)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    weights = jax.device_put(np.array(values, np.float32), NamedSharding(mesh, PartitionSpec()))
    diary.write("loaded", step=first)
    divided = NamedSharding(mesh, PartitionSpec("data"))
    update = jax.jit(train)
    for step in range(first + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        own = np.full((1, len(values)), rank + step, np.float32)
        weights = jax.block_until_ready(update(weights, jax.make_array_from_process_local_data(divided, own)))
        diary.step(step)
        if rank == 0 and step % checkpoint_every == 0:
            save(folder, step, np.asarray(weights).tolist())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
