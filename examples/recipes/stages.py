# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""The language model of characters.py with its layers spread over processes: pipeline parallel, and with tensors and data all three.

TRAINYARD_PARALLELISM='{"pipeline": 2}' torchrun --nproc-per-node=2 stages.py --checkpoints /tmp/stages
TRAINYARD_PARALLELISM='{"pipeline": 2, "tensor": 2}' torchrun --nproc-per-node=8 stages.py --checkpoints /tmp/all-three
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from trainyard_torch import (
    Batches,
    Checkpoints,
    Loader,
    Loop,
    Pipeline,
    SampleOrder,
    group_by_mesh,
    pipeline_stages,
    shard,
    start,
    tensor_parallel,
)

from characters import LENGTH, LETTERS, WIDTH, Block, Sums  # isort: skip - the program's own, below what is prepared for a restart

PLAN = {
    **{f"*.{name}": ColwiseParallel() for name in ("query", "key", "value", "up")},
    **{f"*.{name}": RowwiseParallel() for name in ("out", "down")},
}


class First(nn.Module):
    """Letters to numbers: (batch, length) to (batch, length, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """The sum of what a letter and its place stand for."""
        out: torch.Tensor = self.letters(letters) + self.places(torch.arange(letters.shape[1], device=letters.device))
        return out


def mean_loss(logits: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
    """Over all letters of a micro-batch."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), letters.flatten())


def main() -> None:
    """Train, and say what it has learnt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", required=True, help="a folder that all processes share, or s3://…")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=32, help="lines of a step, all processes together")
    parser.add_argument("--micro-batches", type=int, default=4, help="that are on their way through the stages")
    options = parser.parse_args()
    with start(seed=1) as training:
        blocks = [Block() for _ in range(4)]
        model = nn.Sequential(First(), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS))).to(training.device)
        tensor_parallel(model, training.mesh, PLAN)
        own = [
            shard(stage, training.mesh, blocks=[part for part in stage if isinstance(part, Block)])
            for stage in pipeline_stages(model, training.mesh)
        ]
        optimizers = [
            torch.optim.AdamW([{"params": group} for group in group_by_mesh(stage.parameters())], lr=3e-3)
            for stage in own
        ]
        pipeline = Pipeline(own, mean_loss, training.mesh, n_microbatches=options.micro_batches)
        lines, share = Sums(8192), options.batch // training.data_shard.world_size
        loop = Loop(
            training,
            own,
            optimizers,
            Loader(
                lines,
                Batches(SampleOrder(len(lines), seed=1), options.batch, micro_batch_size=share),
                training.data_shard,
                device=training.device,
            ),
            total_steps=options.steps,
            checkpoints=Checkpoints(options.checkpoints, mesh=training.mesh),
            max_grad_norm=1.0,
        )
        for step in loop:
            for letters in step:
                step.record_loss(pipeline.step(letters[:, :-1], letters[:, 1:].contiguous(), weight=step.weight))
            if training.is_rank0 and step.number % 20 == 0:
                print(f"step {step.number} loss {float(step.loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
