"""What is done with gradients however they are spread: when they are exchanged, and how long they may be."""

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
    """Whether the backward passes inside exchange gradients: no for all micro-batches of a step but the last.

    Forward passes belong inside too. What is wrapped inside the model (DDP, FSDP) counts as the model itself does; a plain module exchanges
    nothing in any case. Not for the modules of a `Pipeline`, which exchanges after the last micro-batch of a step by itself.

    Args:
        model: what `replicate` or `shard` returned, or a module that holds such ones.
        enabled: `MicroBatch.last`.
    """
    return GradientSync(model).enabled_if(enabled)


class GradientSync:
    """What of a model exchanges gradients: found once, as a model may have thousands of modules, and a step few milliseconds.

    Args:
        model: as for `gradient_sync`; what is wrapped later is not known.
    """

    def __init__(self, model: nn.Module) -> None:
        self._averaged = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
        self._sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]

    def enabled_if(self, enabled: bool) -> AbstractContextManager[None]:  # noqa: FBT001 - as above
        """As `gradient_sync`."""
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
    """Scale all gradients of the model by one factor, so that together they are no longer than `max_grad_norm`.

    To be called by all processes, after the backward pass of the last micro-batch, and after `GradScaler.unscale_` where there is one.
    Right for plain gradients, for those spread by `shard` and `tensor_parallel`, and for stages of a pipeline.
    Source: Pascanu et al. 2013.

    Args:
        parameters: all of this process's, of all its stages; those without a gradient count for nothing.
        mesh: that of `Parallelism.mesh`.
        max_norm: the norm that is left at most; infinity only measures.
        norm_type: which: 2 is Euclid's, infinity the largest element.

    Returns:
        The norm before clipping, of the whole model, the same on all processes; if a gradient is not finite, neither is the norm.

    Raises:
        ValueError: longest is not positive, or norm is less than 1.
    """
    if isnan(max_norm) or max_norm <= 0:
        raise ValueError(f"max_norm must be positive, not {max_norm}")
    if isnan(norm_type) or norm_type < 1:
        raise ValueError(f"norm_type must be from 1 on, or infinity, got {norm_type}")
    groups = group_by_mesh(parameter for parameter in parameters if parameter.grad is not None)
    device = torch.device(mesh.device_type)
    # One by one: torch refuses to stack norms of different meshes.
    parts = [
        _whole(get_total_norm([parameter.grad for parameter in group], norm_type)).to(device).double()
        for group in groups
    ] or [torch.zeros((), device=device).double()]
    total = parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(parts), norm_type)
    if size(mesh, "pipeline") > 1:
        total = _of_stages(total, mesh, norm_type)
    for group in groups:
        # A factor of another type than the gradients' would be applied to one tensor after the other on a GPU.
        double = group[0].grad.dtype == torch.float64
        clip_grads_with_norm_(group, max_norm, total if double else total.float())
    return total


def group_by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters, those together that are spread over the same processes: as groups for an optimizer.

    With `foreach` or `fused`, the default on GPUs, an optimizer takes many parameters at once, and torch cannot do that with DTensors of
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
