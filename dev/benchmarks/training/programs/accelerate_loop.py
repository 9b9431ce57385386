"""The task with Hugging Face Accelerate."""

import os
from itertools import islice

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, InitProcessGroupKwargs, ProjectConfiguration
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader

from dev.benchmarks.training.task import LONGEST, RATE, RISE, SEED, WARMUP, net, options, samples


def main() -> None:
    """Train."""
    asked = options()
    cpu, several = not torch.cuda.is_available(), "RANK" in os.environ
    project = ProjectConfiguration(str(asked.folder), automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(
        cpu=cpu,
        dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=SEED),
        project_config=project,
        # Where torch knows MPI, as Debian's does, it would be taken on CPUs.
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")] if cpu and several else [],
    )
    model, data = net(asked.size), samples(asked.size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    rise = LinearLR(optimizer, RISE, total_iters=WARMUP)
    schedule = SequentialLR(optimizer, [rise, CosineAnnealingLR(optimizer, asked.total - WARMUP)], [WARMUP])
    loader = DataLoader(data, asked.batch, shuffle=asked.shuffle)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    step = 0
    if (asked.folder / "checkpoints").exists():
        accelerator.load_state()
        step = schedule.scheduler.last_epoch
        project.iteration = -(-step // asked.save_every)
    while step < asked.steps:
        epoch, done = divmod(step, len(loader))
        loader.set_epoch(epoch)
        left = accelerator.skip_first_batches(loader, done) if done else loader
        for inputs, kinds in islice(left, asked.steps - step):
            loss = cross_entropy(model(inputs), kinds)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), LONGEST)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            if step % asked.print_every == 0:
                mean = accelerator.reduce(loss.detach(), "mean")
                accelerator.print(f"step {step} loss {float(mean):.6f}", flush=True)
            if step % asked.save_every == 0 or step == asked.steps:
                accelerator.save_state()
    accelerator.end_training()


if __name__ == "__main__":
    main()
