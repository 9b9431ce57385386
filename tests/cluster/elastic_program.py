"""A training with the library in a group that is resized. Each rank records the samples and the loss of each step."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from trainyard_torch import (
    Batches,
    CheckpointPolicy,
    Checkpoints,
    Loader,
    Loop,
    SampleOrder,
    SaveInterval,
    replicate,
    start,
)


def main(folder: Path, pause: float, steps: int, size: int, batch: int) -> None:
    """Train for this number of steps, with a minimum duration of a step, and the samples of an epoch and of a step."""
    with start(seed=5) as training:
        made = torch.Generator().manual_seed(1)
        inputs = torch.randn(size, 16, generator=made)
        targets = (inputs @ torch.randn(16, 1, generator=made)).tanh()
        samples = [(torch.tensor(number), inputs[number], targets[number]) for number in range(size)]
        model = replicate(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)), training.mesh)
        batches = Batches(SampleOrder(size, seed=2), batch_size=batch, micro_batch_size=4)
        loop = Loop(
            training,
            model,
            torch.optim.AdamW(model.parameters(), lr=0.003),
            Loader(samples, batches, training.data_shard),
            total_steps=steps,
            checkpoints=Checkpoints(
                str(folder / "checkpoints"), policy=CheckpointPolicy(store=SaveInterval(steps=20)), mesh=training.mesh
            ),
        )
        diary = folder / f"{os.environ['TRAINYARD_ATTEMPT']}-{os.environ['RANK']}.jsonl"
        with diary.open("a", buffering=1) as file:
            for step in loop:
                seen: list[int] = []
                loss = 0.0
                for numbers, x, y in step:
                    each = nn.functional.mse_loss(model(x), y)
                    step.backward(each)
                    seen += numbers.tolist()
                    loss += float(each.detach()) * len(numbers)
                time.sleep(pause)
                file.write(json.dumps({"step": step.number, "samples": seen, "loss": loss}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:]))
