# ruff: noqa: T201 - a user's program: it prints
"""The task with the training library."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from dev.benchmarks.training.task import LONGEST, RATE, RISE, SEED, WARMUP, net, options, samples
from trainyard_torch import (
    Batches,
    CheckpointPolicy,
    Checkpoints,
    Loader,
    Loop,
    LRSchedule,
    SampleOrder,
    SaveInterval,
    replicate,
    start,
)


def main() -> None:
    """Train."""
    asked = options()
    with start(seed=SEED) as training:
        model, data = replicate(net(asked.size).to(training.device), training.mesh), samples(asked.size)
        order = SampleOrder(len(data), seed=SEED, shuffled=asked.shuffle)
        batches = Batches(order, asked.batch, micro_batch_size=asked.batch // training.process.world_size)
        loop = Loop(
            training,
            model,
            torch.optim.AdamW(model.parameters()),
            Loader(data, batches, training.data_shard, device=training.device),
            total_steps=asked.steps,
            checkpoints=Checkpoints(
                str(asked.folder),
                policy=CheckpointPolicy(store=SaveInterval(steps=asked.save_every)),
                mesh=training.mesh,
            ),
            lr_schedule=LRSchedule(
                base_lr=RATE,
                batch_size=asked.batch,
                reference_batch_size=asked.batch,
                warmup_samples=WARMUP * asked.batch,
                start_lr=RISE * RATE,
                decay="cosine",
                total_samples=asked.total * asked.batch,
            ),
            max_grad_norm=LONGEST,
        )
        for step in loop:
            for inputs, kinds in step:
                step.backward(cross_entropy(model(inputs), kinds))
            if step.number % asked.print_every == 0 and step.loss is not None:
                mean = step.loss / training.process.world_size
                dist.all_reduce(mean)
                if training.is_rank0:
                    print(f"step {step.number} loss {float(mean):.6f}", flush=True)


if __name__ == "__main__":
    main()
