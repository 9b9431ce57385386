# ruff: noqa: INP001 - a user's program: it is run, not imported
"""Hugging Face Accelerate: a small CNN learns which of four waves is in a noisy signal. It knows nothing of Trainyard.

    torchrun --nproc-per-node=2 accelerate_train.py --checkpoints /tmp/accelerate

Checkpoints are Accelerate's own (`save_state`), and each start resumes from the newest.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, InitProcessGroupKwargs, broadcast_object_list, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH, NOISE = 64, 0.5
KEPT_CHECKPOINTS = 2


def signals(count: int, seed: int) -> TensorDataset:
    """Signals of shape (1, LENGTH), and which wave each of them is: a sine, a square, a saw that rises, or one that falls."""
    random = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 4, (count,), generator=random)
    turns, phase = 2 + 3 * torch.rand(count, 1, generator=random), torch.rand(count, 1, generator=random)
    place = (turns * torch.linspace(0, 1, LENGTH) + phase) % 1
    waves = torch.stack([(2 * torch.pi * place).sin(), (place < 0.5) * 2.0 - 1, 2 * place - 1, 1 - 2 * place])
    noise = NOISE * torch.randn(count, LENGTH, generator=random)
    return TensorDataset((waves[kinds, torch.arange(count)] + noise).unsqueeze(1), kinds)


def net() -> nn.Module:
    """About 60,000 parameters: (batch, 1, LENGTH) to (batch, 4)."""
    return nn.Sequential(
        *(nn.Conv1d(1, 64, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(64, 96, 9, padding=4), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(96, 4)),
    )


def accelerated() -> Accelerator:
    """Accelerate on the GPUs, or where there are none on the CPUs, for as many processes as the launcher has started."""
    if torch.cuda.is_available():
        return Accelerator(dataloader_config=loading())
    # Distributed training on CPUs must be requested, and so must gloo: a torch built with MPI, as Debian's, would use MPI.
    gloo = [InitProcessGroupKwargs(backend="gloo")] if "LOCAL_RANK" in os.environ else None
    return Accelerator(cpu=True, kwargs_handlers=gloo, dataloader_config=loading())


def loading() -> DataLoaderConfiguration:
    """A batch is shared by all processes, and the order in it follows from the seed and the epoch."""
    return DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)


def newest(folder: Path) -> Path | None:
    """The newest checkpoint, as the first process sees it."""
    found = sorted(folder.glob("step-*[0-9]"))
    (chosen,) = broadcast_object_list([found[-1] if found else None])
    return chosen


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """A checkpoint that gets its name when it is whole: Accelerate writes one file after the other."""
    partial = folder / f"step-{step:08}.partial"
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        partial.rename(partial.with_suffix(""))
        for old in sorted(folder.glob("step-*[0-9]"))[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)


def batches(accelerator: Accelerator, loader: DataLoader, done: int) -> Iterator[list[torch.Tensor]]:
    """This process's share of each batch, from the one after `done` on, without end."""
    epoch, skipped = divmod(done, len(loader))
    while True:
        loader.set_epoch(epoch)
        yield from accelerator.skip_first_batches(loader, skipped)
        epoch, skipped = epoch + 1, 0


def accuracy(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    """Return the share of signals that are classified correctly."""
    right = []
    model.eval()
    with torch.no_grad():
        for inputs, kinds in loader:
            predicted, wanted = accelerator.gather_for_metrics((model(inputs).argmax(1), kinds))
            right.append((predicted == wanted).float())
    return float(torch.cat(right).mean())


def train(accelerator: Accelerator, options: argparse.Namespace) -> None:
    """Go on from the newest checkpoint, and say how well it went."""
    set_seed(1)
    training, test = signals(4096, seed=1), signals(960, seed=2)
    model = net()
    model, optimizer, loader, test_loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        DataLoader(training, options.batch, shuffle=True, drop_last=True),
        DataLoader(test, options.batch),
    )
    done, found = 0, newest(options.checkpoints)
    if found:
        accelerator.load_state(str(found))
        done = int(found.name.removeprefix("step-"))
        accelerator.print(f"resuming from step {done}", flush=True)
    steps = range(done + 1, options.steps + 1)
    for step, (inputs, kinds) in zip(steps, batches(accelerator, loader, done), strict=False):
        loss = nn.functional.cross_entropy(model(inputs), kinds)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % options.save_every == 0 or step == options.steps:
            save(accelerator, options.checkpoints, step)
            mean = accelerator.reduce(loss.detach(), "mean")
            accelerator.print(f"step {step} loss {float(mean):.4f}", flush=True)
    share = accuracy(accelerator, model, test_loader)
    accelerator.print(f"{share:.1%} of signals in the test set are classified correctly", flush=True)


def main() -> None:
    """Join the other processes, train, and part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all processes share")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=96, help="signals of a step, all processes together")
    parser.add_argument("--save-every", type=int, default=25, help="steps from one checkpoint to the next")
    options = parser.parse_args()
    accelerator = accelerated()
    if options.batch % accelerator.num_processes:
        parser.error(f"--batch {options.batch} must be a multiple of the {accelerator.num_processes} processes")
    train(accelerator, options)
    # First what holds the process group: gloo's threads would else now and then abort a process that has ended well.
    accelerator.free_memory()
    gc.collect()
    # Before torch 2.8 gloo's end may be a wait for ever, unless its own object is the last to go (pytorch/pytorch#154976).
    cpu = accelerator.num_processes > 1 and accelerator.device.type == "cpu"
    _gloo = dist.group.WORLD._get_backend(accelerator.device) if cpu else None  # noqa: SLF001
    accelerator.end_training()


if __name__ == "__main__":
    main()
