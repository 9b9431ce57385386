"""Data parallel: a full model on each process, with averaged gradients (DDP). The loader shards the samples."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from trainyard_torch.mesh import submesh

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


class Replicated(DistributedDataParallel):  # type: ignore[misc]  # torch is there where this runs
    """DDP without overhead for a single process: nothing is prepared or averaged.

    Attributes:
        waiting: returns a context for the broadcast of buffers, in which a forward pass waits for rank 0.
    """

    waiting: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def passes(self) -> bool:
        """Whether the wrapper only calls the model."""
        # On a GPU, DDP moves inputs to it.
        return not self.device_ids and alone(self)

    @override
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.module(*inputs, **kwargs) if self.passes else super().forward(*inputs, **kwargs)

    # Private. Without such a method, the broadcast counts as a part of the forward pass.
    def _sync_buffers(self) -> None:
        if torch.compiler.is_compiling():
            super()._sync_buffers()
        else:
            with self.waiting():
                super()._sync_buffers()


def alone(model: DistributedDataParallel) -> bool:
    """Return whether DDP has a single process and no communication hook, so that it has nothing to do."""
    # Private, and the only way to detect a hook, which may have side effects.
    return model.process_group.size() == 1 and not getattr(model, "_comm_hooks", True)


def replicate(
    model: nn.Module, mesh: DeviceMesh, *, bucket_cap_mb: float = 25.0, find_unused_parameters: bool = False
) -> DistributedDataParallel:
    """Return the model with gradients averaged over the processes of the mesh in the backward pass. Rank 0's parameters are used.

    Works with `Pipeline` (each stage is wrapped) and with context parallel. With one process there is nothing to average.
    Source: Li et al. 2020, PyTorch Distributed.

    Args:
        model: the model on this process's device.
        mesh: the mesh of `Parallelism.mesh`.
        bucket_cap_mb: MiB of gradients per all-reduce: small buckets start earlier, large ones cost less in total.
        find_unused_parameters: whether some parameters may have no gradient in a step. The search walks the graph in each step.

    Raises:
        ValueError: parameters are sharded already, no parameter requires a gradient, or a number is out of range.
    """
    group = submesh(mesh, "gradients").get_group()
    if bucket_cap_mb <= 0:
        raise ValueError(f"bucket_cap_mb must be positive, not {bucket_cap_mb}")
    spread = [name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)]
    if spread:
        # DDP would turn them into local tensors: norms, checkpoints and optimizers could no longer recognize the shards.
        raise ValueError(
            f"DDP cannot average parameters that are spread over processes ({spread[0]}): use shard, with reshard_after_forward=False for little traffic"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("no parameter of the model is to be trained (requires_grad): it needs no replicate")
    return Replicated(
        model,
        # gpu-only: the device of DDP
        device_ids=[torch.cuda.current_device()] if mesh.device_type == "cuda" else None,
        process_group=group,
        bucket_cap_mb=bucket_cap_mb,
        find_unused_parameters=find_unused_parameters,
        # Otherwise there are two copies of all gradients.
        gradient_as_bucket_view=True,
    )
