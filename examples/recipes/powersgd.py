# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""PowerSGD: the pictures of images.py over a slow network, with a tenth of the bytes. Its memory is in the checkpoint.

    torchrun --nproc-per-node=2 powersgd.py --checkpoints /tmp/powersgd

Source: T. Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from trainyard_torch import (
    Batches,
    Checkpoints,
    EvaluationLoader,
    Loader,
    Loop,
    PowerSGD,
    SampleOrder,
    compress,
    replicate,
    start,
)

from images import Pictures, net, right  # isort: skip - the program's own, below what is prepared for a restart


def main() -> None:
    """Train, and say what it has cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", required=True, help="a folder that all processes share, or s3://…")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rank", type=int, default=2, help="of the matrices that stand for a gradient")
    options = parser.parse_args()
    with start(seed=1) as training:
        pictures = Pictures(0, 4096)
        unseen = EvaluationLoader(Pictures(10**6, 512), 64, training.data_shard, device=training.device)
        model = replicate(net().to(training.device), training.mesh)
        compression = compress(model, PowerSGD(rank=options.rank, start_step=10))
        loop = Loop(
            training,
            model,
            torch.optim.AdamW(model.parameters(), lr=3e-3),
            Loader(
                pictures,
                Batches(SampleOrder(len(pictures), seed=1), 96, micro_batch_size=48),
                training.data_shard,
                device=training.device,
            ),
            total_steps=options.steps,
            checkpoints=Checkpoints(options.checkpoints, mesh=training.mesh),
            extra_state={"compression": compression},
        )
        for step in loop:
            for inputs, kinds in step:
                step.backward(nn.functional.cross_entropy(model(inputs), kinds))
            if training.is_rank0 and step.number % 25 == 0:
                print(f"step {step.number} loss {float(step.loss):.4f}", flush=True)
        share = right(model, unseen, training)
        if training.is_rank0:
            sent = compression.sent_bytes / max(1, compression.full_bytes)
            print(
                f"{share:.1%} of pictures in the test set are classified correctly, with {sent:.0%} of the bytes",
                flush=True,
            )


if __name__ == "__main__":
    main()
