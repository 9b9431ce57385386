"""Create the process groups of a mesh: none for a dimension of one process, and none for a dimension of all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from trainyard_torch.process_group import default_group

if TYPE_CHECKING:
    from collections.abc import Sequence


def mesh_of(device_type: str, shape: Sequence[int], names: tuple[str, ...]) -> DeviceMesh:
    """Return the mesh of all processes, with as few process groups as it needs. All processes call it at the same time.

    `torch.distributed.init_device_mesh` creates every group of every dimension on every process. With 512 processes that
    shard the parameters, four dimensions have 512 groups of one process each. Here a dimension of all processes uses the
    default group. All dimensions of one process share one group, which no other process knows. It has no connection.

    Args:
        device_type: "cuda" or "cpu".
        shape: the sizes of the dimensions, outermost first. Their product is the size of the default group.
        names: the names of the dimensions.
    """
    # On the CPU, also below a default device.
    ranks = torch.arange(dist.get_world_size(), device="cpu", dtype=torch.int).view(*shape)
    groups: list[dist.ProcessGroup] = []
    alone: dist.ProcessGroup | None = None
    for dimension, (size, name) in enumerate(zip(shape, names, strict=True)):
        if size == ranks.numel():
            groups.append(default_group())
        elif size == 1:
            alone = alone or _group_of_this_process()
            groups.append(alone)
        else:
            groups.append(_own_group(ranks.movedim(dimension, -1).reshape(-1, size).tolist(), name))
    return DeviceMesh.from_group(groups, device_type, ranks, mesh_dim_names=names)


def _group_of_this_process() -> dist.ProcessGroup:
    """Return a new group of this process alone. Local synchronization: no other process has to call it."""
    return dist.new_group([dist.get_rank()], use_local_synchronization=True, group_desc="mesh_alone")


def _own_group(members: list[list[int]], name: str) -> dist.ProcessGroup:
    """Return this process's group of a dimension. Every process creates all of them, so that torch counts them alike."""
    own: list[dist.ProcessGroup] = []
    for ranks in members:
        group = dist.new_group(ranks, group_desc=f"mesh_{name}")
        if dist.get_rank() in ranks:
            own.append(group)
    return own[0]
