# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""A character language model that learns to add, spread by FSDP2, and by tensor parallel where the job says so.

torchrun --nproc-per-node=2 characters.py --checkpoints /tmp/characters
TRAINYARD_PARALLELISM='{"tensor": 2}' torchrun --nproc-per-node=2 characters.py --checkpoints /tmp/characters-tensor
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
    Precision,
    SampleOrder,
    group_by_mesh,
    shard,
    start,
    tensor_parallel,
)

LETTERS = "0123456789+=; "
LENGTH, WIDTH, HEAD, BLOCKS = 40, 64, 16, 3


class Sums:
    """Lines such as "3+4=7;12+5=17;": LENGTH + 1 numbers of letters each, always the same line for a number."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> torch.Tensor:
        random = torch.Generator().manual_seed(number)
        text = ""
        while len(text) <= LENGTH:
            one, other = torch.randint(0, 20, (2,), generator=random).tolist()
            text += f"{one}+{other}={one + other};"
        return torch.tensor([LETTERS.index(letter) for letter in text[: LENGTH + 1]])


class Block(nn.Module):
    """Causal attention, and a feed-forward layer for each letter."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, WIDTH) to the same."""
        seen = self.before(x)
        # As many heads as are here: tensor parallel leaves a part of them to each process.
        heads = (layer(seen).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


class Model(nn.Module):
    """A GPT of about 150,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """(batch, length) to (batch, length, letters)."""
        x = self.letters(letters) + self.places(torch.arange(letters.shape[1], device=letters.device))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


PLAN = {
    **{f"blocks.*.{name}": ColwiseParallel() for name in ("query", "key", "value", "up")},
    **{f"blocks.*.{name}": RowwiseParallel() for name in ("out", "down")},
}


def main() -> None:
    """Train, and say what it has learnt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", required=True, help="a folder that all processes share, or s3://…")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--precision", default="fp32", help="fp32, tf32, bf16 …")
    options = parser.parse_args()
    with start(seed=1) as training:
        model = Model().to(training.device)
        tensor_parallel(model, training.mesh, PLAN)
        shard(model, training.mesh, blocks=list(model.blocks))
        optimizer = torch.optim.AdamW([{"params": group} for group in group_by_mesh(model.parameters())], lr=3e-3)
        lines = Sums(8192)
        loop = Loop(
            training,
            model,
            optimizer,
            Loader(
                lines,
                Batches(SampleOrder(len(lines), seed=1), 32, micro_batch_size=16),
                training.data_shard,
                device=training.device,
            ),
            total_steps=options.steps,
            checkpoints=Checkpoints(options.checkpoints, mesh=training.mesh),
            precision=Precision(options.precision, training.device),
            max_grad_norm=1.0,
        )
        loss = float("nan")
        for step in loop:
            for lines_of_letters in step:
                logits = model(lines_of_letters[:, :-1])
                step.backward(nn.functional.cross_entropy(logits.flatten(0, 1), lines_of_letters[:, 1:].flatten()))
            if step.number % 20 == 0:
                loss = float(step.loss)
                if training.is_rank0:
                    print(f"step {step.number} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
