"""Lay out the processes of a training: which of them share samples, sequences, layers and matrices.

The sizes are pure and need no torch. Joining a process group and choosing a device happen elsewhere; nothing here wraps a model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from math import prod
from typing import TYPE_CHECKING

from trainyard_torch.data.batches import DataShard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DIMENSIONS = ("pipeline", "replicate", "shard", "context", "tensor")
"""The dimensions of the mesh, outermost first."""

JOINED = {
    "data": ("replicate", "shard"),
    "shards": ("shard", "context"),
    "gradients": ("replicate", "shard", "context"),
}
"""The dimensions that `submesh` joins."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The degrees of parallelism. The rest is data parallel.

    Attributes:
        tensor: processes that share each matrix (tensor parallel).
        pipeline: processes that share the layers, in stages (pipeline parallel).
        context: processes that share each sequence (context parallel).
        replicate: copies of the parameters among the data-parallel processes, for hybrid sharding (HSDP). Each copy is sharded over
            data / replicate processes, for example those of one node. 1: one copy, sharded over all of them.

    Raises:
        ValueError: a size is not a positive integer.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    replicate: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            size = getattr(self, field.name)
            if type(size) is not int or size < 1:
                raise ValueError(f"parallelism: {field.name} must be a positive integer, not {size!r}")

    @classmethod
    def parse(cls, text: str | None) -> Parallelism:
        """Parse the environment variable TRAINYARD_PARALLELISM: a JSON object such as {"tensor":2,"pipeline":2,"context":1}.

        None or an empty text: all processes are data parallel.

        Raises:
            ValueError: the text is not a JSON object, has an unknown or repeated key, or an invalid size.
        """
        if not text:
            return cls()
        try:
            sizes = json.loads(text, object_pairs_hook=_once)
        except json.JSONDecodeError as error:
            raise ValueError(f"TRAINYARD_PARALLELISM is not JSON ({error}): {text!r}") from None
        if not isinstance(sizes, dict):
            raise ValueError(  # noqa: TRY004 - it is a text's value
                f'TRAINYARD_PARALLELISM must be a JSON object such as {{"tensor": 2}}, got {text!r}'
            )
        known = [field.name for field in fields(cls)]
        if unknown := sorted(sizes.keys() - set(known)):
            raise ValueError(f"TRAINYARD_PARALLELISM has {', '.join(unknown)}, and may have {', '.join(known)} only")
        return cls(**sizes)

    def data(self, world_size: int) -> int:
        """Return the data-parallel size among `world_size` processes.

        Raises:
            ValueError: the degrees do not divide `world_size`.
        """
        if world_size < 1:
            raise ValueError(f"world_size must be from 1 on, not {world_size}")
        model = self.tensor * self.pipeline * self.context
        data, rest = divmod(world_size, model)
        if rest:
            raise ValueError(
                f"{world_size} processes cannot be laid out as tensor {self.tensor} x pipeline {self.pipeline} x context {self.context}: "
                f"use a multiple of {model} processes, or another parallelism"
            )
        if data % self.replicate:
            raise ValueError(
                f"{data} data-parallel processes cannot hold {self.replicate} copies of the parameters: replicate must divide {data}"
            )
        return data

    def shape(self, world_size: int) -> tuple[int, int, int, int, int]:
        """Return the sizes of DIMENSIONS.

        Raises:
            ValueError: as `data`.
        """
        return (self.pipeline, self.replicate, self.data(world_size) // self.replicate, self.context, self.tensor)

    def mesh(self, world_size: int, device_type: str) -> DeviceMesh:
        """Create the mesh of all processes. All of them call it once, at the same time.

        It always has all of DIMENSIONS, and a process group only where more than one process exchanges data. Dimensions with more traffic are further inside, since adjacent ranks are on
        one node. Tensor parallel exchanges activations several times per layer, context parallel once per layer. Shards
        are gathered once per layer, but ahead of use. Copies are averaged once per step, and stages send one activation
        per micro-batch. `submesh` also returns JOINED dimensions. "data" are the processes that share the samples,
        "shards" those that share one copy of the parameters. "gradients" are those whose gradients are averaged.

        Args:
            world_size: the number of processes.
            device_type: "cuda" or "cpu".

        Raises:
            ValueError: the sizes do not fit the world size, or there is no process group of that size.
        """
        shape = self.shape(world_size)
        import torch.distributed as dist  # noqa: PLC0415 - the sizes are also read where there is no torch

        from trainyard_torch.mesh_groups import mesh_of  # noqa: PLC0415

        found = dist.get_world_size() if dist.is_initialized() else None
        if found != world_size:
            raise ValueError(
                f"a mesh of {world_size} processes needs a process group of as many, and "
                + ("none is initialized: call init_process_group first" if found is None else f"this one has {found}")
            )
        mesh = mesh_of(device_type, shape, DIMENSIONS)
        for name in JOINED:
            submesh(mesh, name)
        return mesh


def submesh(mesh: DeviceMesh, dimension: str) -> DeviceMesh:
    """Return the processes of this process's group in a dimension, as a one-dimensional mesh.

    Args:
        mesh: the mesh of `Parallelism.mesh`.
        dimension: one of DIMENSIONS or JOINED.

    Raises:
        ValueError: the mesh has no such dimension.
    """
    name = _named(mesh, dimension)
    # Private, and the only way to join dimensions of one mesh, as FSDP needs it. Torch returns an existing mesh again.
    return mesh[JOINED[name]]._flatten(name) if name in JOINED else mesh[name]  # noqa: SLF001


def sharding(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh for FSDP: the processes that share one copy of the parameters, preceded by the dimension of copies if there are several."""
    shards = submesh(mesh, "shards")
    if size(mesh, "replicate") == 1:
        return shards
    # Private, from torch 2.10 on, which warns if a joined dimension is selected by its name. Older releases know no other way.
    join = getattr(type(mesh), "_concatenate", None)
    return join([mesh["replicate"], shards]) if join else mesh["replicate", _named(mesh, "shards")]


def data_shard(mesh: DeviceMesh) -> DataShard:
    """Return the data shard of this process, for `Batches.step`."""
    data = submesh(mesh, "data")
    return DataShard(data.get_local_rank(), data.size())


def size(mesh: DeviceMesh, dimension: str) -> int:
    """Return the size of a dimension.

    Raises:
        ValueError: the mesh has no such dimension.
    """
    parts = JOINED.get(dimension, (dimension,))
    names = mesh.mesh_dim_names or ()
    if missing := [part for part in parts if part not in names]:
        raise ValueError(
            f"the mesh has no {' or '.join(missing)}, only {', '.join(names)}: make it with Parallelism.mesh"
        )
    return prod(mesh.shape[names.index(part)] for part in parts)


def _named(mesh: DeviceMesh, dimension: str) -> str:
    """Return the first name of the same processes, so that no group is created twice.

    That is the dimension itself, its only part with more than one process, or another join of the same parts.
    """
    size(mesh, dimension)
    if dimension not in JOINED:
        return dimension
    wide = _wide_parts(mesh, dimension)
    if len(wide) < 2:
        return wide[0] if wide else "shard"
    return next(name for name in JOINED if _wide_parts(mesh, name) == wide)


def _wide_parts(mesh: DeviceMesh, joined: str) -> list[str]:
    return [part for part in JOINED[joined] if size(mesh, part) > 1]


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"TRAINYARD_PARALLELISM has a key twice: {', '.join(key for key, _ in pairs)}")
    return found
