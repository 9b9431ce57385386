"""Handle gradients that are not finite: skip the step, and end the training after several in a row. No step waits for a GPU because of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _NormBase  # private, and the base of all modules with running statistics

from trainyard_torch.monitoring.deferred import DeferredScalars

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn
    from torch.optim import Optimizer


class NonFiniteError(Exception):
    """The training is not finite any more, and a restart from the last checkpoint would repeat it. The operator does not restart it."""

    exit_code = 98


class RollBackError(NonFiniteError):
    """As `NonFiniteError`, but the program asks for a restart from the last good checkpoint."""

    exit_code = 99


@dataclass(frozen=True)
class NonFinitePolicy:
    """What follows gradients with NaN or infinity: the step is skipped, and after several in a row the training ends.

    Attributes:
        max_steps: the number of skipped steps in a row after which the training ends, at least 1. On a GPU it ends a few steps later.
        roll_back: end with exit code 99, which the operator restarts from the last good checkpoint, and not with 98, which fails the job.

    Raises:
        ValueError: `max_steps` is out of range.
    """

    max_steps: int = 10
    roll_back: bool = False

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be from 1 on, not {self.max_steps}")

    def error(self, message: str) -> NonFiniteError:
        """Return the exception that ends the training."""
        return RollBackError(message) if self.roll_back else NonFiniteError(message)


class StepGuard:
    """Takes the steps of optimizers whose gradients are finite, and counts the others.

    Args:
        policy: when the training ends.
        device: the device of the gradient norm.
    """

    def __init__(self, policy: NonFinitePolicy, device: torch.device) -> None:
        self._policy = policy
        self._in_a_row = torch.zeros((), device=device)
        self._skipped = torch.zeros((), device=device)
        self._counted = DeferredScalars()

    def judge(self, norm: Tensor) -> None:
        """Decide on the device whether the step with this gradient norm is skipped. The norm is equal on all processes."""
        self._skipped = torch.isfinite(norm).logical_not().float()
        self._in_a_row = (self._in_a_row + 1) * self._skipped

    def step(self, optimizer: Optimizer) -> None:
        """Take a step of the optimizer unless it is skipped.

        A fused optimizer reads the decision on the device, as `GradScaler` does it. For others, the host waits for the device.
        """
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            if not self._skipped.item():
                optimizer.step()
            return
        fused: Any = optimizer
        fused.grad_scale, fused.found_inf = None, self._skipped
        try:
            optimizer.step()
        finally:
            del fused.grad_scale, fused.found_inf

    def check(self, number: int) -> None:
        """Raise the policy's `NonFiniteError` if too many steps in a row were skipped. Call it after each step."""
        self._counted.put("skipped steps", self._in_a_row)
        count = self._counted.newest
        if count is not None and count >= self._policy.max_steps:
            raise self._policy.error(
                f"step {number}: the gradients of {count:g} steps in a row are not finite: use a lower learning rate, or skip these samples"
            )


def all_finite(values: Iterable[Tensor | None], models: Iterable[nn.Module]) -> bool:
    """Return whether these numbers, this process's part of the trained parameters, and running statistics have neither NaN nor infinity.

    It waits for the device. A skipped step leaves running statistics with the NaN of its samples, and so does each step after it.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for data in chain.from_iterable(map(_checked, models)):
        local = data.to_local() if isinstance(data, DTensor) else data
        if local.is_floating_point() and local.numel():
            groups.setdefault((local.device, local.dtype), []).append(local)
    norms = [torch.stack(torch._foreach_norm(group, float("inf"))) for group in groups.values()]  # noqa: SLF001 - one kernel for all
    found = [value.detach() for value in values if value is not None]
    return all(bool(torch.isfinite(each).all()) for each in (*norms, *found))


def _checked(model: nn.Module) -> Iterator[Tensor]:
    """Yield trained parameters and running statistics."""
    yield from (parameter.detach() for parameter in model.parameters() if parameter.requires_grad)
    for module in model.modules():
        if isinstance(module, _NormBase):
            yield from module.buffers(recurse=False)
