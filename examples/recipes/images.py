# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""Image classification with DistributedDataParallel: a small CNN learns which of four shapes is in a noisy picture.

torchrun --nproc-per-node=2 images.py --checkpoints /tmp/images
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn

from trainyard_torch import (
    Batches,
    Checkpoints,
    EvaluationLoader,
    Loader,
    Loop,
    LRSchedule,
    SampleOrder,
    Training,
    replicate,
    start,
    submesh,
)

SIDE, SHAPES = 16, 4


class Pictures:
    """Pictures of shape (1, 16, 16) and what is on them. Each is made when it is asked for, always the same one for a number."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        random = torch.Generator().manual_seed(self._first + number)
        kind = (self._first + number) % SHAPES
        row, column, size = torch.randint(3, 10, (3,), generator=random).tolist()
        picture = torch.randn(1, SIDE, SIDE, generator=random) * 0.5
        for at in range(size):
            down, right = min(row + at, SIDE - 1), min(column + at, SIDE - 1)
            # A line down, one to the right, one askew, and a cross.
            if kind in {0, 3}:
                picture[0, down, column] += 2
            if kind in {1, 3}:
                picture[0, row, right] += 2
            if kind == 2:
                picture[0, down, right] += 2
        return picture, kind


def net() -> nn.Module:
    """About 30,000 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 48), nn.ReLU(), nn.Linear(48, SHAPES)),
    )


def right(model: nn.Module, pictures: EvaluationLoader, training: Training) -> float:
    """Return the share that is classified correctly; each process evaluates its own part."""
    counts = torch.zeros(2, device=training.device)
    model.eval()
    with torch.no_grad():
        for (inputs, kinds), count in pictures:
            found = model(inputs).argmax(1) == kinds
            counts += torch.tensor([int(found[:count].sum()), count], device=training.device)
    model.train()
    dist.all_reduce(counts, group=submesh(training.mesh, "data").get_group())
    return float(counts[0] / counts[1])


def main() -> None:
    """Train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", required=True, help="a folder that all processes share, or s3://…")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=96, help="pictures of a step, all processes together")
    options = parser.parse_args()
    with start(seed=1) as training:
        pictures = Pictures(0, 4096)
        unseen = EvaluationLoader(Pictures(10**6, 512), 64, training.data_shard, device=training.device)
        model = replicate(net().to(training.device), training.mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        batches = Batches(SampleOrder(len(pictures), seed=1), options.batch, micro_batch_size=48)
        loop = Loop(
            training,
            model,
            optimizer,
            Loader(pictures, batches, training.data_shard, device=training.device),
            total_steps=options.steps,
            checkpoints=Checkpoints(options.checkpoints, mesh=training.mesh),
            lr_schedule=LRSchedule(
                base_lr=3e-3,
                batch_size=options.batch,
                reference_batch_size=options.batch,
                warmup_samples=10 * options.batch,
            ),
        )
        for step in loop:
            for inputs, kinds in step:
                step.backward(nn.functional.cross_entropy(model(inputs), kinds))
            if training.is_rank0 and step.number % 25 == 0:
                print(f"step {step.number} loss {float(step.loss):.4f}", flush=True)
            if step.number % 50 == 0:
                with loop.monitor.phase("evaluate"):
                    share = right(model, unseen, training)
                if training.is_rank0:
                    print(
                        f"before step {step.number} {share:.1%} of unseen pictures are classified correctly", flush=True
                    )
        share = right(model, unseen, training)
        if training.is_rank0:
            print(f"{share:.1%} of pictures in the test set are classified correctly", flush=True)


if __name__ == "__main__":
    main()
