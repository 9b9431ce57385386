"""What LARS and LAMB have in common: a rate for each layer, from the norms of its weights and of its step.

Plain loops over parameters: `torch.compile(optimizer.step)` makes few kernels of them, and DTensors go through.
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
    """An optimizer that moves each parameter by itself."""

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
    """Parameter groups for `LARS` and `LAMB`: weights, and what is left out of decay and adaptation as both papers do.

    Args:
        model: its parameters with fewer than two dimensions (biases, and weights of norms) are the ones left out.
        weight_decay: that of the others.
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
    """One norm over another; 1 where one of them is 0: a layer of zeros has to be able to leave them."""
    return torch.where((above > 0) & (below > 0), above / below, torch.ones_like(above))


def norm(value: Tensor) -> Tensor:
    """Return the norm of a tensor, of shape (), in fp32 or wider. For a DTensor, the norm of the full tensor. Does not synchronize."""
    found = torch.linalg.vector_norm(value, dtype=torch.promote_types(value.dtype, torch.float32))
    return found.full_tensor() if isinstance(found, DTensor) else found


def checked(below: float = math.inf, **numbers: float) -> None:
    """See that all of these numbers are from 0 on, and less than `below`.

    Raises:
        ValueError: one is not.
    """
    for name, value in numbers.items():
        if not 0 <= value < below:
            raise ValueError(f"{name} must be from 0 to less than {below}, got {value}")


def gradients(group: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """The parameters of a group that have a gradient, with it.

    Raises:
        ValueError: one is sparse.
    """
    pairs = [(value, value.grad) for value in group["params"] if value.grad is not None]
    if any(gradient.is_sparse for _, gradient in pairs):
        raise ValueError(
            "a gradient is sparse, and norms of layers need all of it: make the embedding with sparse=False"
        )
    return pairs
