# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""DiLoCo: two islands train by themselves and meet now and then, for a slow link between them.

    torchrun --nproc-per-node=2 islands.py

Source: A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch import DiLoCo, join, start

FEATURES = 32


def samples(count: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of shape (count, FEATURES), and what is to be said of them, (count, 1)."""
    inputs = torch.randn(count, FEATURES, generator=random)
    return inputs, (inputs[:, :8].square().sum(1, keepdim=True) - 8) / 4


def main() -> None:
    """Train, and say how much was sent for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="how often the islands meet")
    parser.add_argument("--every", type=int, default=25, help="steps from one meeting to the next")
    options = parser.parse_args()
    with start(seed=1) as training:
        island = join(2)
        model: nn.Module = nn.Sequential(
            nn.Linear(FEATURES, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1)
        )
        model = model.to(training.device)
        if island.islands.size > 1:
            model = DistributedDataParallel(model, process_group=island.inside)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        diloco = DiLoCo(model, island, every=options.every, rate=0.7, momentum=0.9)
        # Each process sees samples of its own.
        random = torch.Generator().manual_seed(training.place.rank + 1)
        test = [part.to(training.device) for part in samples(512, torch.Generator().manual_seed(10**6))]
        steps = options.rounds * options.every
        for step in range(1, steps + 1):
            inputs, wanted = (part.to(training.device) for part in samples(64, random))
            nn.functional.mse_loss(model(inputs), wanted).backward()
            optimizer.step()
            optimizer.zero_grad()
            training.progress(step, total=steps)
            if diloco.step() and training.is_first:
                with torch.no_grad():
                    loss = float(nn.functional.mse_loss(model(test[0]), test[1]))
                print(
                    f"step {step}: the islands are alike, loss {loss:.4f}, {diloco.sent_bytes / 1e6:.2f} MB sent",
                    flush=True,
                )


if __name__ == "__main__":
    main()
