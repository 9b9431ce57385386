# ruff: noqa: INP001 - a user's program: it is run, not imported
"""Megatron Core: a small network, split over the ranks, learns to sort five numbers. It knows nothing of Trainyard.

    torchrun --nproc-per-node=2 megatron_train.py --checkpoints /tmp/megatron --tensor-model-parallel-size 2

Each tensor parallel rank saves its part, and each start resumes from the newest step of which all parts are there.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import nn

LENGTH, HIDDEN = 5, 128


class Sorter(nn.Module):
    """Two layers of which each rank holds a part: (batch, LENGTH) to (batch, LENGTH)."""

    def __init__(self, config: ModelParallelConfig) -> None:
        super().__init__()
        self._widen = ColumnParallelLinear(
            LENGTH, HIDDEN, config=config, init_method=nn.init.xavier_uniform_, gather_output=False
        )
        self._narrow = RowParallelLinear(
            HIDDEN,
            LENGTH,
            config=config,
            init_method=nn.init.xavier_uniform_,
            bias=True,
            input_is_parallel=True,
            skip_bias_add=False,
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the numbers in order, as far as it has learnt that."""
        wide, _ = self._widen(inputs)
        return self._narrow(torch.relu(wide))[0]


def numbers(count: int, seed: int) -> torch.Tensor:
    """Numbers between 0 and 1, of shape (count, LENGTH)."""
    return torch.rand(count, LENGTH, generator=torch.Generator().manual_seed(seed))


def newest(folder: Path, parts: int) -> int:
    """Return the newest step of which all parts are there; 0 without one. All ranks see the same, since they look before any saves."""
    steps = {int(path.name.split("-")[1]) for path in folder.glob("step-*-part-*.pt")}
    whole = [step for step in steps if all(part_of(folder, step, part).exists() for part in range(parts))]
    return max(whole, default=0)


def part_of(folder: Path, step: int, part: int) -> Path:
    """Return where a tensor parallel rank saves its part."""
    return folder / f"step-{step:08}-part-{part}.pt"


def save(state: dict[str, object], path: Path) -> None:
    """Save one part; the file gets its name when it is whole."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.rename(path)


def report(line: str) -> None:
    """Print a line on rank 0."""
    if torch.distributed.get_rank() == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def average_gradients(model: nn.Module) -> None:
    """Average them over the ranks that hold the same part."""
    group = parallel_state.get_data_parallel_group()
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad, group=group)
        parameter.grad /= group.size()


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Go on from the newest checkpoint, and say how well it went."""
    parts, part = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    copies, copy = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    torch.manual_seed(1)
    config = ModelParallelConfig(
        tensor_model_parallel_size=parts, use_cpu_initialization=True, params_dtype=torch.float32
    )
    model = Sorter(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    done = newest(options.checkpoints, parts)
    torch.distributed.barrier()
    if done:
        state = torch.load(part_of(options.checkpoints, done, part), map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        report(f"resuming from step {done}")
    for step in range(done + 1, options.steps + 1):
        inputs = numbers(options.batch, seed=step).chunk(copies)[copy].to(device)
        loss = nn.functional.mse_loss(model(inputs), inputs.sort(dim=1).values)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if step % options.save_every == 0 or step == options.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            if copy == 0:
                save(state, part_of(options.checkpoints, step, part))
            report(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        inputs = numbers(1000, seed=0).to(device)
        error = (model(inputs) - inputs.sort(dim=1).values).abs().mean().item()
    report(f"sorted with a mean error of {error:.4f}")


def main() -> None:
    """Join the other processes, train, and part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all processes share")
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1, help="ranks that share one copy")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, all processes together")
    parser.add_argument("--save-every", type=int, default=25, help="steps from one checkpoint to the next")
    options = parser.parse_args()
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    parallel_state.initialize_model_parallel(options.tensor_model_parallel_size)
    train(options, device)
    torch.distributed.barrier()
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
