"""The model that the benchmarks train: a GPT by torch's own layers."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping

VOCABULARY = 32_768


class Block(nn.Module):  # type: ignore[misc]  # torch is not at hand where types are checked
    """Causal attention and a perceptron, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the same shape (batch, length, width)."""
        parts = self.attention(self.norms[0](values)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(-2)
        values = values + self.joined(attended)
        return values + self.perceptron(self.norms[1](values))


class Gpt(nn.Module):  # type: ignore[misc]  # as above
    """A decoder: tokens of shape (batch, length) to logits of shape (batch, length, VOCABULARY)."""

    def __init__(self, width: int = 768, layers: int = 12, length: int = 1024) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        values = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of predicting each next token."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def size(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(each.numel() for each in model.parameters())


def seconds(act: Any) -> float:
    """Return how long `act()` takes on the GPU and on the host together."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    act()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def emit(part: str, **figures: object) -> None:
    """Print the figures of one part as a line of JSON, which the parent process reads."""
    rounded: Mapping[str, object] = {
        name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in figures.items()
    }
    print(json.dumps({"part": part, **rounded}), flush=True)  # noqa: T201 - the figures
