"""Unscale gradients in groups that torch's scaler accepts: tensors of one mesh and one sharding together.

`torch.amp.GradScaler` passes all gradients of an optimizer to one operation. That fails with DTensors of different
meshes, or with DTensors and plain tensors. And it checks for overflows only on the processes of the first gradient's
mesh. But the scaler accepts any object with parameters as an optimizer, and tracks each separately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import nn
    from torch.amp import GradScaler
    from torch.optim import Optimizer


class LoadedMicroBatch:
    """A stand-in for an optimizer. The scaler calls its step if all gradients are finite.

    Args:
        parameters: parameters with gradients.

    Attributes:
        param_groups: as in an optimizer.
        finite: whether the step was taken.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.param_groups = [{"params": parameters}]
        self.finite = False

    def step(self) -> None:
        """Record that no gradient is infinite or NaN on any process that has a shard of it. The scaler calls it."""
        self.finite = True


class Unscaled:
    """The gradients of one optimizer in one step, divided by the scale.

    Args:
        scaler: the scaler of the loss.
        optimizer: the optimizer of the parameters.
    """

    def __init__(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        self._scaler, self._optimizer = scaler, optimizer
        groups: dict[Hashable, list[nn.Parameter]] = {}
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if (gradient := parameter.grad) is not None:
                spread = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
                groups.setdefault(spread, []).append(parameter)
        self._parts = [LoadedMicroBatch(group) for group in groups.values()]
        for part in self._parts:
            scaler.unscale_(part)

    def step(self) -> bool:
        """Take the optimizer's step if all gradients are finite, and update the scale.

        Returns:
            Whether the step was taken: the same on all processes that share the parameters.
        """
        for part in self._parts:
            self._scaler.step(part)
        finite = all(part.finite for part in self._parts)
        if finite:
            self._optimizer.step()
        if self._parts:
            self._scaler.update()
        return finite
