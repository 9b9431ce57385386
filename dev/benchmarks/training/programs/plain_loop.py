# ruff: noqa: T201 - a user's program: it prints
"""The task by hand: torch's DistributedDataParallel, DistributedSampler and DataLoader, and `torch.save` by the first process."""

import os
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, DistributedSampler

from dev.benchmarks.training.task import LONGEST, RATE, RISE, SEED, WARMUP, net, options, samples


def main() -> None:  # noqa: C901 - by hand, it is that long
    """Train."""
    asked = options()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    plain, data = net(asked.size).to(device), samples(asked.size)
    model = DistributedDataParallel(plain, gradient_as_bucket_view=True) if world > 1 else plain
    optimizer = torch.optim.AdamW(plain.parameters(), lr=RATE)
    rise = LinearLR(optimizer, RISE, total_iters=WARMUP)
    schedule = SequentialLR(optimizer, [rise, CosineAnnealingLR(optimizer, asked.total - WARMUP)], [WARMUP])
    sampler = DistributedSampler(data, world, rank, shuffle=asked.shuffle, seed=SEED)
    loader = DataLoader(data, asked.batch // world, sampler=sampler)
    path, step = asked.folder / "checkpoint.pt", 0
    if path.exists():
        state = torch.load(path, map_location=device, weights_only=True)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        step = state["step"]
    while step < asked.steps:
        epoch, done = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for inputs, kinds in islice(loader, done, done + asked.steps - step):
            loss = cross_entropy(model(inputs.to(device)), kinds.to(device))
            loss.backward()
            clip_grad_norm_(plain.parameters(), LONGEST)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            if step % asked.print_every == 0:
                mean = loss.detach() / world
                if world > 1:
                    dist.all_reduce(mean)
                if rank == 0:
                    print(f"step {step} loss {float(mean):.6f}", flush=True)
            if rank == 0 and (step % asked.save_every == 0 or step == asked.steps):
                state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"schedule": schedule.state_dict(), "step": step}
                torch.save(state, path.with_suffix(".part"))
                path.with_suffix(".part").replace(path)
    if world > 1:
        # Before torch 2.8 gloo's end may be a wait for ever, unless its own object is the last to go (pytorch/pytorch#154976).
        _gloo = dist.group.WORLD._get_backend(torch.device("cpu"))  # noqa: SLF001
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
