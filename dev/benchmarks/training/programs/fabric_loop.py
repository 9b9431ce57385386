"""The task with Lightning Fabric."""

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader

from dev.benchmarks.training.task import LONGEST, RATE, RISE, SEED, WARMUP, net, options, samples


def endless(loader: Any) -> Iterator[Any]:
    """One epoch after the other."""
    while True:
        yield from loader


def main() -> None:
    """Train."""
    asked = options()
    fabric = Fabric(devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    fabric.launch()
    fabric.seed_everything(SEED)
    model, data = net(asked.size), samples(asked.size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    rise = LinearLR(optimizer, RISE, total_iters=WARMUP)
    schedule = SequentialLR(optimizer, [rise, CosineAnnealingLR(optimizer, asked.total - WARMUP)], [WARMUP])
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(data, asked.batch // fabric.world_size, shuffle=asked.shuffle))
    path = asked.folder / "checkpoint.pt"
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "step": 0}
    if path.exists():
        fabric.load(path, state)
    done = state["step"]
    for step, (inputs, kinds) in enumerate(islice(endless(loader), done, asked.steps), done + 1):
        loss = cross_entropy(model(inputs), kinds)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=LONGEST)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % asked.print_every == 0:
            mean = fabric.all_reduce(loss.detach().clone())
            fabric.print(f"step {step} loss {float(mean):.6f}", flush=True)
        if step % asked.save_every == 0 or step == asked.steps:
            fabric.save(path, {**state, "step": step})


if __name__ == "__main__":
    main()
