"""Data parallel: a whole model on each process, their gradients averaged (DDP). How samples are shared is not decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch.mesh import submesh

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def replicate(
    model: nn.Module, mesh: DeviceMesh, *, bucket_mib: float = 25.0, unused: bool = False
) -> DistributedDataParallel:
    """The model, its gradients averaged over the processes of the mesh during the backward pass; parameters are rank 0's at first.

    Works with `Pipeline` (each stage is wrapped) and with context parallel. With one process it averages over itself alone.
    Source: Li et al. 2020, PyTorch Distributed.

    Args:
        model: on this process's device.
        mesh: that of `Parallelism.mesh`.
        bucket_mib: MiB of gradients that are sent at once: fewer begin earlier, more cost less each.
        unused: whether some parameters may have no gradient in a step; to look for them costs a walk over the graph in each.

    Raises:
        ValueError: parameters are spread over processes already, none is to be trained, or a number is out of its range.
    """
    group = submesh(mesh, "gradients").get_group()
    if bucket_mib <= 0:
        raise ValueError(f"bucket_mib must be positive, and is {bucket_mib}")
    spread = [name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)]
    if spread:
        # DDP would turn them into local tensors: no norm, checkpoint or optimizer could tell any more whose part it has.
        raise ValueError(
            f"DDP cannot average parameters that are spread over processes ({spread[0]}): use shard, with reshard=False for little traffic"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("no parameter of the model is to be trained (requires_grad): it needs no replicate")
    return DistributedDataParallel(
        model,
        # gpu-only: the device of DDP
        device_ids=[torch.cuda.current_device()] if mesh.device_type == "cuda" else None,
        process_group=group,
        bucket_cap_mb=bucket_mib,
        find_unused_parameters=unused,
        # Otherwise there are two copies of all gradients.
        gradient_as_bucket_view=True,
    )
