"""LAMB: Adam with decoupled weight decay, and a learning rate for each layer.

Source: Y. You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020, algorithm 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from trainyard_torch.optim.layerwise import Layerwise, checked, norm, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class LAMB(Layerwise):
    """LAMB, for networks that are usually trained with Adam, at batches of tens of thousands of samples.

    With m and v as in Adam, bias-corrected, w the weight and b the weight decay:

        r = m / (sqrt(v) + eps) + b * w,    w = w - lr * |w| / |r| * r

    Args:
        params: parameters, or groups of them: `layerwise.parameter_groups` makes the usual groups.
        lr: the learning rate, usually set by `LRSchedule`.
        betas: the decay rates of m and v, each from 0 to less than 1.
        eps: added to the denominator.
        weight_decay: b.
        adapt: False: without |w| / |r|, for biases and norms.
        max_weight_norm: the upper limit of |w|: phi in the paper. None: no limit.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
        max_weight_norm: float | None = None,
    ) -> None:
        checked(
            lr=lr,
            eps=eps,
            weight_decay=weight_decay,
            max_weight_norm=0.0 if max_weight_norm is None else max_weight_norm,
        )
        checked(below=1, beta1=betas[0], beta2=betas[1])
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "adapt": adapt,
                "max_weight_norm": max_weight_norm,
            },
        )

    @override
    def move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[weight], group["betas"]
        if not state:
            # On the host, as in torch's Adam: reading it does not synchronize with the device.
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] += 1
        steps = state["step"].item()
        mean = state["exp_avg"].lerp_(gradient, 1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        change = (mean / (1 - first**steps)) / ((square / (1 - second**steps)).sqrt_().add_(group["eps"]))
        if group["weight_decay"]:
            change.add_(weight, alpha=group["weight_decay"])
        rate = group["lr"]
        if group["adapt"]:
            size = norm(weight)
            size = size if group["max_weight_norm"] is None else size.clamp(max=group["max_weight_norm"])
            rate = (rate * ratio(size, norm(change))).to(change.dtype)
        weight.sub_(change.mul_(rate))
