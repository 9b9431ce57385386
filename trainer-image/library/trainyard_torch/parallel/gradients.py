"""Synchronize and clip gradients of replicated, sharded and pipelined models."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from math import inf, isnan
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from trainyard_torch.mesh import size
from trainyard_torch.parallel.data_parallel import Replicated, alone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def gradient_sync(model: nn.Module, enabled: bool) -> AbstractContextManager[None]:  # noqa: FBT001 - the only setting
    """Return a context manager that enables or disables gradient synchronization in the backward passes inside.

    Only the last micro-batch of a step synchronizes. Forward passes belong inside, too. Modules that are wrapped by DDP or FSDP inside
    the model count as well. A plain module never synchronizes. A `Pipeline` synchronizes by itself after the last micro-batch of a step.

    Args:
        model: the result of `replicate` or `shard`, or a module that contains such results.
        enabled: `MicroBatch.last`.
    """
    return GradientSync(model).enabled_if(enabled)


class GradientSync:
    """The modules of a model that synchronize gradients.

    They are found once: a model may have thousands of modules, and a step takes few milliseconds.

    Args:
        model: as for `gradient_sync`. Modules that are wrapped later are not known.
    """

    def __init__(self, model: nn.Module) -> None:
        self._averaged = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
        self._sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]

    def enabled_if(self, enabled: bool) -> AbstractContextManager[None]:  # noqa: FBT001 - as above
        """Return the context manager of `gradient_sync`."""
        return self._enabled_if(enabled=enabled) if self._averaged or self._sharded else nullcontext()

    @contextmanager
    def _enabled_if(self, *, enabled: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self._averaged:
                if not (isinstance(module, Replicated) and module.passes) and (not enabled or alone(module)):
                    stack.enter_context(module.no_sync())
            for module in self._sharded:
                module.set_requires_gradient_sync(enabled, recurse=False)
                stack.callback(module.set_requires_gradient_sync, True, recurse=False)  # noqa: FBT003 - it is positional there
            yield


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
    if isnan(max_norm) or max_norm <= 0:
        raise ValueError(f"max_norm must be positive, not {max_norm}")
    if isnan(norm_type) or norm_type < 1:
        raise ValueError(f"norm_type must be from 1 on, or infinity, got {norm_type}")
    groups = group_by_mesh(parameter for parameter in parameters if parameter.grad is not None)
    device = torch.device(mesh.device_type)
    # One at a time: torch refuses to stack norms of different meshes.
    parts = [
        _whole(get_total_norm([parameter.grad for parameter in group], norm_type)).to(device).double()
        for group in groups
    ] or [torch.zeros((), device=device).double()]
    total = parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(parts), norm_type)
    if size(mesh, "pipeline") > 1:
        total = _of_stages(total, mesh, norm_type)
    for group in groups:
        # With a factor of another dtype than the gradients, a GPU would scale the tensors one after the other.
        double = group[0].grad.dtype == torch.float64
        clip_grads_with_norm_(group, max_norm, total if double else total.float())
    return total


def group_by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return the parameters in groups, one for each mesh over which they are sharded, as parameter groups for an optimizer.

    With `foreach` or `fused`, the default on GPUs, an optimizer updates many parameters at once. torch cannot do that with DTensors of
    different meshes, or with DTensors and plain tensors: AdamW([{"params": group} for group in group_by_mesh(model.parameters())]).
    """
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return list(groups.values())


def _whole(norm_type: torch.Tensor) -> torch.Tensor:
    return norm_type.full_tensor() if isinstance(norm_type, DTensor) else norm_type


def _of_stages(total: torch.Tensor, mesh: DeviceMesh, norm_type: float) -> torch.Tensor:
    group = mesh["pipeline"].get_group()
    if norm_type == inf:
        dist.all_reduce(total, dist.ReduceOp.MAX, group)
        return total
    power = total**norm_type
    dist.all_reduce(power, dist.ReduceOp.SUM, group)
    return power ** (1 / norm_type)
