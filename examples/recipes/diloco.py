# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""DiLoCo: two replica groups train by themselves and average their parameters every few steps, for a slow link between them.

A checkpoint is saved after each average.

    torchrun --nproc-per-node=2 diloco.py --checkpoints /tmp/diloco

Source: A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch import Checkpoints, DiLoCo, ReplicaGroupState, join_replica_group, start

FEATURES = 32


def samples(count: int, random: torch.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of shape (count, FEATURES), and what is to be said of them, (count, 1)."""
    inputs = torch.randn(count, FEATURES, generator=random)
    return inputs, (inputs[:, :8].square().sum(1, keepdim=True) - 8) / 4


def main() -> None:
    """Train, and say how much was sent for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", required=True, help="a folder that all processes share, or s3://…")
    parser.add_argument("--rounds", type=int, default=8, help="how often the replica groups average their parameters")
    parser.add_argument("--every", type=int, default=25, help="steps from one average to the next")
    options = parser.parse_args()
    if min(options.rounds, options.every) < 1:
        parser.error("--rounds and --every must be from 1 on")
    with start(seed=1) as training:
        group = join_replica_group(2)
        model: nn.Module = nn.Sequential(
            nn.Linear(FEATURES, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1)
        )
        model = model.to(training.device)
        if group.layout.size > 1:
            model = DistributedDataParallel(model, process_group=group.intra_group)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        diloco = DiLoCo(model, group, sync_every=options.every, outer_lr=0.7, outer_momentum=0.9)
        checkpoints = Checkpoints(options.checkpoints, mesh=training.mesh)
        # Replica groups have equal parameters after an average, and optimizer moments of their own.
        state = {"diloco": diloco, "group": ReplicaGroupState(model, optimizer, group)}
        begun = checkpoints.load(state)
        test = [part.to(training.device) for part in samples(512, torch.Generator().manual_seed(10**6))]
        steps = options.rounds * options.every
        for step in range(begun.step + 1 if begun else 1, steps + 1):
            # Each process draws samples of its own, the same after a restart.
            training.reseed(step)
            inputs, wanted = (part.to(training.device) for part in samples(64))
            nn.functional.mse_loss(model(inputs), wanted).backward()
            optimizer.step()
            optimizer.zero_grad()
            training.progress(step, total=steps)
            alike, stop = diloco.step(), training.must_stop(step)
            if alike and training.is_rank0:
                with torch.no_grad():
                    loss = float(nn.functional.mse_loss(model(test[0]), test[1]))
                print(
                    f"step {step}: the replica groups are equal, loss {loss:.4f}, {diloco.sent_bytes / 1e6:.2f} MB sent since the start",
                    flush=True,
                )
            if alike or stop:
                checkpoints.save(step, state, wait=stop)
            if stop:
                training.exit()
        checkpoints.close()


if __name__ == "__main__":
    main()
