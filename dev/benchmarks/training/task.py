"""What all programs train: model, samples and numbers are the same. How they are trained is each program's own."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dev.benchmarks.training.sizes import SIZES

SEED: Final = 1
KINDS: Final = 10
COLOURS: Final = 3
RATE: Final = 1e-3
RISE: Final = 0.1
"""The share of the rate that the first step has."""
WARMUP: Final = 5
"""Steps in which the rate rises; after them it falls as a cosine does, to 0 at the last step."""
LONGEST: Final = 1.0
"""The norm that gradients are clipped to."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a program is asked for.

    Attributes:
        size: one of SIZES.
        batch: samples of a step, all processes together.
        steps: the last step of this run.
        total: the last step of the schedule.
        save_every: steps from one checkpoint to the next; the last step has one too.
        print_every: steps from one line to the next.
        shuffle: whether samples come in another order in each epoch; else they come as they lie.
        folder: of checkpoints. A run goes on from what is there.
    """

    size: str
    batch: int
    steps: int
    total: int
    save_every: int
    print_every: int
    shuffle: bool
    folder: Path


def options() -> Options:
    """From the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SIZES), default="usual")
    for name in ("steps", "total", "save-every", "print-every"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--in-order", action="store_true")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    batch = SIZES[options.size].share * int(os.environ.get("WORLD_SIZE", "1"))
    return Options(
        options.size,
        batch,
        options.steps,
        options.total,
        options.save_every,
        options.print_every,
        not options.in_order,
        options.folder,
    )


def samples(size: str) -> Any:
    """Pictures of shape (3, side, side), and for each the kind that it is of: always the same ones."""
    chosen, random = SIZES[size], torch.Generator().manual_seed(SEED)
    pictures = torch.randn(chosen.samples, COLOURS, chosen.side, chosen.side, generator=random)
    signs = torch.randn(COLOURS * chosen.side**2, KINDS, generator=random)
    return TensorDataset(pictures, (pictures.flatten(1) @ signs).argmax(1))


def net(size: str) -> Any:
    """The model, with the same weights each time: for `usual` a CNN of 120,000 parameters, for `tiny` two layers of 13,000."""
    torch.manual_seed(SEED)
    if size == "tiny":
        inputs = COLOURS * SIZES[size].side ** 2
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, KINDS))
    return nn.Sequential(
        *(nn.Conv2d(COLOURS, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * (SIZES[size].side // 8) ** 2, 64), nn.ReLU(), nn.Linear(64, KINDS)),
    )
