# ruff: noqa: INP001 - a user's program: it is run, not imported
"""DeepSpeed: a small network learns to sort five numbers, with ZeRO. It knows nothing of Trainyard.

    deepspeed --num_gpus 2 deepspeed_train.py --checkpoints /tmp/deepspeed

Checkpoints are DeepSpeed's own (`save_checkpoint`), and each start resumes from the newest.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import deepspeed
import torch
from torch import nn

LENGTH = 5


def numbers(count: int, seed: int) -> torch.Tensor:
    """Numbers between 0 and 1, of shape (count, LENGTH)."""
    return torch.rand(count, LENGTH, generator=torch.Generator().manual_seed(seed))


def net() -> nn.Module:
    """About 20,000 parameters: (batch, LENGTH) to (batch, LENGTH)."""
    return nn.Sequential(*(nn.Linear(LENGTH, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()), nn.Linear(128, LENGTH))


def configuration(options: argparse.Namespace) -> dict[str, object]:
    """Return DeepSpeed's configuration: torch's own Adam needs no compiler."""
    return {
        "train_batch_size": options.batch,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "torch_adam": True}},
        "zero_optimization": {"stage": options.stage},
        "zero_allow_untested_optimizer": True,
    }


def report(rank: int, line: str) -> None:
    """Print a line on rank 0."""
    if rank == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def train(options: argparse.Namespace) -> None:
    """Go on from the newest checkpoint, and say how well it went."""
    torch.manual_seed(1)
    model = net()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=configuration(options))
    found, _ = engine.load_checkpoint(str(options.checkpoints))
    rank, share = engine.global_rank, options.batch // engine.dp_world_size
    if found:
        report(rank, f"resuming from step {engine.global_steps}")
    for step in range(engine.global_steps + 1, options.steps + 1):
        # All ranks together see the same numbers, however many they are.
        inputs = numbers(options.batch, seed=step)[rank * share : (rank + 1) * share].to(engine.device)
        loss = nn.functional.mse_loss(engine(inputs), inputs.sort(dim=1).values)
        engine.backward(loss)
        engine.step()
        if step % options.save_every == 0 or step == options.steps:
            engine.save_checkpoint(str(options.checkpoints), tag=f"step-{step:08}")
            report(rank, f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        inputs = numbers(1000, seed=0).to(engine.device)
        error = (engine(inputs) - inputs.sort(dim=1).values).abs().mean().item()
    report(rank, f"sorted with a mean error of {error:.4f}")


def main() -> None:
    """Join the other processes, train, and part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all processes share")
    parser.add_argument("--stage", type=int, default=3, choices=[0, 1, 2, 3], help="of ZeRO")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, all processes together")
    parser.add_argument("--save-every", type=int, default=25, help="steps from one checkpoint to the next")
    parser.add_argument("--local_rank", type=int, default=-1, help="set by the launcher; DeepSpeed reads LOCAL_RANK")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        # DeepSpeed would compile this operation at the start.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    train(options)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
