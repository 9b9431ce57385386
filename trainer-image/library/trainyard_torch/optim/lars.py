"""LARS: SGD with momentum, and a learning rate for each layer.

Source: Y. You, I. Gitman, B. Ginsburg, "Large Batch Training of Convolutional Networks", 2017, algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from trainyard_torch.optim.layerwise import Layerwise, checked, norm, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class LARS(Layerwise):
    """LARS, for networks that are usually trained with SGD, at batches of thousands of samples.

    With g the gradient, w the weight, b the weight decay:

        v = momentum * v + lr * local * (g + b * w),    w = w - v,    local = trust * |w| / (|g| + b * |w|)

    Args:
        params: parameters, or groups of them: `layerwise.parameter_groups` makes the usual groups.
        lr: the learning rate, usually set by `LRSchedule`.
        momentum: the momentum of v, from 0 to less than 1.
        weight_decay: b.
        trust_coefficient: eta in the paper: the share of its norm by which a layer changes at lr 1.
        adapt: False: local is 1, for biases and norms.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        adapt: bool = True,
    ) -> None:
        checked(lr=lr, weight_decay=weight_decay, trust_coefficient=trust_coefficient)
        checked(below=1, momentum=momentum)
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "trust_coefficient": trust_coefficient,
                "adapt": adapt,
            },
        )

    @override
    def move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, decay = self.state[weight], group["weight_decay"]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        change = gradient.add(weight, alpha=decay) if decay else gradient
        rate = group["lr"]
        if group["adapt"]:
            size = norm(weight)
            local = ratio(group["trust_coefficient"] * size, norm(gradient) + decay * size)
            change = change * (rate * local).to(change.dtype)
        else:
            change = change * rate
        weight.sub_(state["momentum_buffer"].mul_(group["momentum"]).add_(change))
