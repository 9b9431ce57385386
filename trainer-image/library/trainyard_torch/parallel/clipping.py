"""Clip gradients of replicated, sharded and pipelined models by their total norm."""

from __future__ import annotations

from math import inf, isnan
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from trainyard_torch.mesh import size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

EPSILON = 1e-6
"""Added to the norm before the division, as torch does."""


def clip_grad_norm_(
    parameters: Iterable[nn.Parameter], mesh: DeviceMesh, max_norm: float, *, norm_type: float = 2.0
) -> torch.Tensor:
    """Scale all gradients of the model by one factor, so that their total norm is at most `max_norm`.

    All processes call it, after the backward pass of the last micro-batch, and after `GradScaler.unscale_` if there is a scaler.
    It supports plain gradients, gradients sharded by `shard` and `tensor_parallel`, and pipeline stages.
    Source: Pascanu et al. 2013.

    Args:
        parameters: all parameters of this process, of all its stages. Parameters without a gradient are ignored.
        mesh: the mesh of `Parallelism.mesh`.
        max_norm: the largest norm after clipping. Infinity only measures the norm.
        norm_type: the p-norm: 2 is the Euclidean norm, infinity the largest element.

    Returns:
        The norm of the whole model before clipping, equal on all processes. It is not finite if a gradient is not finite.

    Raises:
        ValueError: `max_norm` is not positive, or `norm_type` is less than 1.
    """
    return GradientClipper(parameters, mesh, max_norm, norm_type=norm_type).clip()


class GradientClipper:
    """`clip_grad_norm_` for one model. The parameters are looked up once, since that takes longer than clipping a small model.

    Args:
        parameters, mesh, max_norm, norm_type: as for `clip_grad_norm_`.

    Raises:
        ValueError: as for `clip_grad_norm_`.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], mesh: DeviceMesh, max_norm: float, *, norm_type: float = 2.0
    ) -> None:
        if isnan(max_norm) or max_norm <= 0:
            raise ValueError(f"max_norm must be positive, not {max_norm}")
        if isnan(norm_type) or norm_type < 1:
            raise ValueError(f"norm_type must be from 1 on, or infinity, got {norm_type}")
        self._parameters = list(parameters)
        self._mesh, self._max_norm, self._norm_type = mesh, max_norm, norm_type
        self._device = torch.device(mesh.device_type)
        self._staged = size(mesh, "pipeline") > 1
        kinds = {(each.device, each.dtype, isinstance(each, DTensor)) for each in self._parameters}
        # On the CPU, gradients that the factor 1 would not change are left alone. Below this norm it is 1 in any number format.
        self._on_host, self._unclipped = self._device.type == "cpu", 0.99 * max_norm - 2 * EPSILON
        self._alike = len(kinds) == 1 and not self._staged and not next(iter(kinds))[2]

    def clip(self) -> torch.Tensor:
        """Clip the gradients that the parameters have now, and return their norm before."""
        return self._clip_alike() if self._alike else self._clip_groups()

    def _clip_alike(self) -> torch.Tensor:
        """Clip plain gradients of one device and one dtype: as torch does, without what it asks about each gradient."""
        gradients = [gradient for each in self._parameters if (gradient := each.grad) is not None]
        if not gradients or any(gradient.is_sparse for gradient in gradients):
            return self._clip_groups()
        with torch.no_grad():
            norms = torch._foreach_norm(gradients, self._norm_type)  # noqa: SLF001 - torch's own function uses it; there is no public one
            total = torch.linalg.vector_norm(torch.stack(norms), self._norm_type)
            if not self._on_host or not total.item() < self._unclipped:
                factor = torch.clamp(self._max_norm / (total + EPSILON), max=1.0)
                torch._foreach_mul_(gradients, factor)
        return total

    def _clip_groups(self) -> torch.Tensor:
        groups = group_by_mesh(each for each in self._parameters if each.grad is not None)
        # One at a time: torch refuses to stack norms of different meshes.
        parts = [self._norm(group) for group in groups] or [torch.zeros((), device=self._device).double()]
        total = parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(parts), self._norm_type)
        if self._staged:
            total = _of_stages(total, self._mesh, self._norm_type)
        for group in groups:
            # With a factor of another dtype than the gradients, a GPU would scale the tensors one after the other.
            double = group[0].grad is not None and group[0].grad.dtype == torch.float64
            clip_grads_with_norm_(group, self._max_norm, total if double else total.float())
        return total

    def _norm(self, group: list[nn.Parameter]) -> torch.Tensor:
        norm = get_total_norm([each.grad for each in group if each.grad is not None], self._norm_type)
        whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
        return whole.to(self._device).double()


def group_by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return the parameters in groups, one for each mesh over which they are sharded, as parameter groups for an optimizer.

    With `foreach` or `fused`, the default on GPUs, an optimizer updates many parameters at once. torch cannot do that with DTensors of
    different meshes, or with DTensors and plain tensors: AdamW([{"params": group} for group in group_by_mesh(model.parameters())]).
    """
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return list(groups.values())


def _of_stages(total: torch.Tensor, mesh: DeviceMesh, norm_type: float) -> torch.Tensor:
    group = mesh["pipeline"].get_group()
    if norm_type == inf:
        dist.all_reduce(total, dist.ReduceOp.MAX, group)
        return total
    power = total**norm_type
    dist.all_reduce(power, dist.ReduceOp.SUM, group)
    return power ** (1 / norm_type)
