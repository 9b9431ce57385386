# ruff: noqa: INP001 - a user's program: it is run, not imported
"""Horovod: a small network learns which of three rings a point is on, each process with its own points. It knows nothing of Trainyard.

    horovodrun -np 2 python3 horovod_train.py --checkpoints /tmp/horovod

Rank 0 writes checkpoints, and each start resumes from the newest.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn

RINGS = 3


def points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of shape (count, 2) around rings of radius 1, 2 and 3, and the ring of each, of shape (count,)."""
    random = torch.Generator().manual_seed(seed)
    rings = torch.randint(0, RINGS, (count,), generator=random)
    angle = 2 * torch.pi * torch.rand(count, generator=random)
    radius = 1 + rings + 0.2 * torch.randn(count, generator=random)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), rings


def report(line: str) -> None:
    """Print a line on rank 0."""
    if hvd.rank() == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint in place of the last one. A process that is killed meanwhile leaves the last one as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "checkpoint.new").open("wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    (folder / "checkpoint.new").replace(folder / "checkpoint.pt")


def resumed(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Take the state of the newest checkpoint, the same on all ranks. Returns its step; 0 where there is none."""
    step = 0
    if hvd.rank() == 0 and (file := folder / "checkpoint.pt").exists():
        found = torch.load(file)
        step = found["step"]
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return int(hvd.broadcast_object(step, root_rank=0))


def train(options: argparse.Namespace) -> None:
    """Go on from the newest checkpoint, and say how well it went."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, RINGS))
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    first = resumed(options.checkpoints, model, optimizer)
    if first:
        report(f"resuming from step {first}")
    # It averages the gradients of all ranks.
    averaged = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    inputs, rings = points(options.points, seed=100 + hvd.rank())
    for step in range(first + 1, options.steps + 1):
        averaged.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), rings)
        loss.backward()
        averaged.step()
        time.sleep(options.pause)
        if step % options.save_every == 0 or step == options.steps:
            if hvd.rank() == 0:
                save(options.checkpoints, step, model, optimizer)
            report(f"step {step} loss {float(loss.detach()):.4f}")
    inputs, rings = points(2000, seed=99)
    right = float((model(inputs).argmax(dim=1) == rings).float().mean())
    report(f"{100 * right:.1f}% of points in the test set are classified correctly, by {hvd.size()} ranks")


def main() -> None:
    """Train with all ranks that Horovod finds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder of rank 0")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--points", type=int, default=500, help="of each rank")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--save-every", type=int, default=20, help="steps from one checkpoint to the next")
    options = parser.parse_args()
    hvd.init()
    train(options)
    hvd.shutdown()


if __name__ == "__main__":
    main()
