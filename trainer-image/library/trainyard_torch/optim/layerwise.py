"""The common part of LARS and LAMB: a learning rate for each layer, from the norms of its weights and of its update.

Plain loops over parameters: `torch.compile(optimizer.step)` fuses them into few kernels, and DTensors are supported.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn


class Layerwise(Optimizer, ABC):  # type: ignore[misc]  # torch is there where this runs
    """An optimizer that updates each parameter separately."""

    @override
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Take a step.

        Args:
            closure: recomputes the loss and its gradients.

        Returns:
            What the closure returned.

        Raises:
            ValueError: a gradient is sparse.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                for weight, gradient in gradients(group):
                    self.move(weight, gradient, group)
        return loss

    @abstractmethod
    def move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter in place."""


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups for `LARS` and `LAMB`: weights, and parameters without decay and adaptation, as in both papers.

    Args:
        model: its parameters with fewer than two dimensions (biases, and weights of norms) have no decay and adaptation.
        weight_decay: the weight decay of the others.
    """
    trained = [value for value in model.parameters() if value.requires_grad]
    weights = [value for value in trained if value.dim() > 1]
    others = [value for value in trained if value.dim() <= 1]
    groups = [
        {"params": weights, "weight_decay": weight_decay, "adapt": True},
        {"params": others, "weight_decay": 0.0, "adapt": False},
    ]
    return [group for group in groups if group["params"]]


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """Return the ratio of two norms; 1 if one of them is 0, so that a layer of zeros can change."""
    return torch.where((above > 0) & (below > 0), above / below, torch.ones_like(above))


def norm(value: Tensor) -> Tensor:
    """Return the norm of a tensor, of shape (), in fp32 or wider. For a DTensor, the norm of the full tensor. Does not synchronize."""
    found = torch.linalg.vector_norm(value, dtype=torch.promote_types(value.dtype, torch.float32))
    return found.full_tensor() if isinstance(found, DTensor) else found


def checked(below: float = math.inf, **numbers: float) -> None:
    """Check that all of these numbers are at least 0 and less than `below`.

    Raises:
        ValueError: a number is out of range.
    """
    for name, value in numbers.items():
        if not 0 <= value < below:
            raise ValueError(f"{name} must be from 0 to less than {below}, got {value}")


def gradients(group: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters of a group that have a gradient, with it.

    Raises:
        ValueError: a gradient is sparse.
    """
    pairs = [(value, value.grad) for value in group["params"] if value.grad is not None]
    if any(gradient.is_sparse for _, gradient in pairs):
        raise ValueError(
            "a gradient is sparse, and norms of layers need all of it: make the embedding with sparse=False"
        )
    return pairs
