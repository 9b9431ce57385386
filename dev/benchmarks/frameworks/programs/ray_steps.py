"""Ray Train's TorchTrainer: this is the driver, and Ray starts `train` on each worker."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchTrainer

WORKERS = 2


def train(options: dict[str, Any]) -> None:
    """Train in one of the workers until a fault. What it imports is imported here: Ray sends the function alone."""
    began = time.monotonic()
    sys.path.insert(0, options["folder"])
    from dev.benchmarks.frameworks.programs.diary import STEP_SECONDS, STEPS, Diary, load, save  # noqa: PLC0415

    folder = Path(options["folder"])
    diary = Diary(folder, began)
    rank = ray.train.get_context().get_world_rank()
    group = [uuid.uuid4().hex]
    torch.distributed.broadcast_object_list(group)
    diary.connected(rank, torch.distributed.get_world_size(), group[0])
    state = [load(folder)]
    torch.distributed.broadcast_object_list(state)
    first, weights = state[0][0], torch.tensor(state[0][1])
    diary.write("loaded", step=first)
    for step in range(first + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        gradient = weights / 2 + rank + step
        torch.distributed.all_reduce(gradient)
        weights -= 1e-6 * gradient
        diary.step(step)
        if rank == 0 and step % options["checkpoint_every"] == 0:
            save(folder, step, weights.tolist())


def main(folder: Path, checkpoint_every: int) -> None:
    """Train on all workers, and go on after each failure. A new driver resumes from the same checkpoint."""
    ray.init()
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(folder), "checkpoint_every": checkpoint_every},
        scaling_config=ray.train.ScalingConfig(num_workers=WORKERS),
        run_config=ray.train.RunConfig(
            name="steps", storage_path=str(folder), failure_config=ray.train.FailureConfig(max_failures=-1)
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
