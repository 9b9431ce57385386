# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""A large batch: the pictures of images.py in steps of 1024, by LARS, with a rate that grows with the batch and a warm-up.

    torchrun --nproc-per-node=2 large_batch.py --checkpoints /tmp/large

Sources: P. Goyal et al., 2017 (linear scaling, warm-up); Y. You et al., 2017 (LARS).
"""

from __future__ import annotations

import argparse

from torch import nn

from trainyard_torch import (
    LARS,
    Batches,
    Checkpoints,
    EvaluationLoader,
    Loader,
    Loop,
    LRSchedule,
    SampleOrder,
    replicate,
    start,
)

from images import Pictures, net, right  # isort: skip - the program's own, below what is prepared for a restart


def main() -> None:
    """Train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", required=True, help="a folder that all processes share, or s3://…")
    parser.add_argument("--batch", type=int, default=1024, help="pictures of a step, all processes together")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    with start(seed=1) as training:
        pictures = Pictures(0, 4096)
        unseen = EvaluationLoader(Pictures(10**6, 512), 64, training.data_shard, device=training.device)
        model = replicate(net().to(training.device), training.mesh)
        optimizer = LARS(model.parameters(), lr=1.0, momentum=0.9, weight_decay=1e-4)
        steps = options.epochs * len(pictures) // options.batch
        loop = Loop(
            training,
            model,
            optimizer,
            # What does not fit into a device at once is accumulated.
            Loader(
                pictures,
                Batches(SampleOrder(len(pictures), seed=1), options.batch, micro_batch_size=256),
                training.data_shard,
                device=training.device,
            ),
            total_steps=steps,
            checkpoints=Checkpoints(options.checkpoints, mesh=training.mesh),
            lr_schedule=LRSchedule(
                base_lr=4.0,
                batch_size=options.batch,
                warmup_samples=2 * len(pictures),
                decay="cosine",
                total_samples=options.epochs * len(pictures),
            ),
        )
        for step in loop:
            for inputs, kinds in step:
                step.backward(nn.functional.cross_entropy(model(inputs), kinds))
            if training.is_rank0 and step.number % 5 == 0:
                print(f"step {step.number} loss {float(step.loss):.4f}", flush=True)
        share = right(model, unseen, training)
        if training.is_rank0:
            print(f"{share:.1%} of pictures in the test set are classified correctly", flush=True)


if __name__ == "__main__":
    main()
