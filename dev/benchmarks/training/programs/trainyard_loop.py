# ruff: noqa: T201 - a user's program: it prints
"""The task with the training library."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from dev.benchmarks.training.task import LONGEST, RATE, RISE, SEED, WARMUP, net, options, samples
from trainyard_torch import Batches, Checkpoints, Due, Loader, Loop, Order, Plan, Schedule, replicate, start


def main() -> None:
    """Train."""
    asked = options()
    with start(seed=SEED) as training:
        model, data = replicate(net(asked.size).to(training.device), training.mesh), samples(asked.size)
        order = Order(len(data), seed=SEED, shuffled=asked.shuffle)
        batches = Batches(order, asked.batch, micro=asked.batch // training.place.world)
        loop = Loop(
            training,
            model,
            torch.optim.AdamW(model.parameters()),
            Loader(data, batches, training.member, device=training.device),
            until=asked.steps,
            checkpoints=Checkpoints(
                str(asked.folder), plan=Plan(store=Due(steps=asked.save_every)), mesh=training.mesh
            ),
            schedule=Schedule(
                rate=RATE,
                batch=asked.batch,
                reference=asked.batch,
                warmup=WARMUP * asked.batch,
                begin=RISE * RATE,
                then="cosine",
                total=asked.total * asked.batch,
            ),
            longest=LONGEST,
        )
        for step in loop:
            for inputs, kinds in step:
                step.backward(cross_entropy(model(inputs), kinds))
            if step.number % asked.print_every == 0 and step.loss is not None:
                mean = step.loss / training.place.world
                dist.all_reduce(mean)
                if training.is_first:
                    print(f"step {step.number} loss {float(mean):.6f}", flush=True)


if __name__ == "__main__":
    main()
