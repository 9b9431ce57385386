"""Gradients of a scaled loss, in parts that torch's scaler can take: those together that are spread over the same processes in the same way.

`torch.amp.GradScaler` passes all gradients of an optimizer to one operation. That fails with DTensors of different meshes or DTensors next to plain
tensors, and asks other processes for an overflow as the first of them is spread. But the scaler takes anything with parameters for an
optimizer, and keeps book of each by itself.
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
    """A stand-in for an optimizer, for the scaler: if its step is called, all gradients were finite.

    Args:
        parameters: with gradients.

    Attributes:
        param_groups: as an optimizer has them.
        finite: whether the step was taken.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.param_groups = [{"params": parameters}]
        self.finite = False

    def step(self) -> None:
        """Called by the scaler where no gradient is infinite or NaN, on any process that has a part of one."""
        self.finite = True


class Unscaled:
    """The gradients of one optimizer in one step, divided by the scale.

    Args:
        scaler: by which the loss was scaled.
        optimizer: the parameters' own.
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
        """Take the optimizer's step where all gradients are finite, and have the next scale set.

        Returns:
            Whether it was taken: the same on all processes that share the parameters.
        """
        for part in self._parts:
            self._scaler.step(part)
        finite = all(part.finite for part in self._parts)
        if finite:
            self._optimizer.step()
        if self._parts:
            self._scaler.update()
        return finite
