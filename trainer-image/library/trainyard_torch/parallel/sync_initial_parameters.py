"""Broadcast initial parameters, so that all processes that hold the same parameters start with the same values."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def sync_initial_parameters(model: nn.Module, within: DeviceMesh) -> None:
    """Copy the parameters and buffers of the first process to all processes of a one-dimensional mesh.

    Tensors on another device than the mesh's, such as the meta device, are skipped: the caller must fill them with the same values.
    """
    group = within.get_group()
    if dist.get_world_size(group) == 1:
        return
    first = dist.get_global_rank(group, 0)
    with torch.no_grad():
        for tensor in chain(model.parameters(), model.buffers()):
            own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if own.device.type == within.device_type:
                dist.broadcast(own, first, group)
