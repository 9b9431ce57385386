"""Context parallel: shard each sequence over processes that pass keys and values in a ring. Uses torch's implementation, a prototype."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch.distributed.tensor.experimental import context_parallel as torch_context_parallel

from trainyard_torch.mesh import size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import torch
    from torch.distributed.device_mesh import DeviceMesh


@contextmanager
def context_parallel(
    mesh: DeviceMesh,
    tensors: Sequence[torch.Tensor],
    dimensions: Sequence[int],
    *,
    no_restore_buffers: Collection[torch.Tensor] = (),
) -> Iterator[None]:
    """Shard sequences inside: each tensor is this process's part, and `torch.nn.functional.scaled_dot_product_attention` uses the rest.

    Both the forward and the backward pass belong inside. Pass all tensors with a sequence dimension: inputs, targets, and buffers such as positions.
    They are split in place, and restored at the end. The loss is then the mean of this process's part; `replicate` or `shard` average the
    gradients over the parts, as over samples. Attention must be causal `torch.nn.functional.scaled_dot_product_attention`, since the parts
    are cut so that each has equal work. With one process in `mesh["context"]`, nothing changes. Source: Liu et al. 2023, Ring attention.

    Args:
        mesh: the mesh of `Parallelism.mesh`.
        tensors: tensors other than parameters, which do not require a gradient.
        dimensions: the sequence dimension of each.
        no_restore_buffers: those of the tensors that are not used afterwards, such as the inputs of a step. They stay split, and no copy of
            them is kept meanwhile.

    Raises:
        ValueError: the numbers of dimensions and tensors differ, or the mesh is of CPUs. Or a tensor requires a gradient, or its length is not
            divisible by twice the context degree.
    """
    degree = size(mesh, "context")
    _check(degree, tensors, dimensions, no_restore_buffers)
    if degree == 1:
        yield
        return
    if mesh.device_type == "cpu":
        raise ValueError(
            "context parallel needs GPUs: torch has no attention over several CPUs; leave spec.parallelism.context at 1 here"
        )
    # gpu-only: attention over several devices
    with split_sequences(mesh, tensors, dimensions, no_restore_buffers):
        yield


@contextmanager
def split_sequences(
    mesh: DeviceMesh,
    tensors: Sequence[torch.Tensor],
    dimensions: Sequence[int],
    no_restore_buffers: Collection[torch.Tensor] = (),
) -> Iterator[None]:
    """Split the tensors inside, and restore them at the end. The arguments are those of `context_parallel`, checked, and the degree is above 1."""
    with torch_context_parallel(
        mesh["context"],
        buffers=list(tensors),
        buffer_seq_dims=list(dimensions),
        no_restore_buffers=set(no_restore_buffers),
    ):
        try:
            yield
        finally:
            for tensor in tensors:
                # What the program has marked meanwhile. Torch restores a tensor by `resize_`, which refuses one that requires a gradient.
                if tensor.requires_grad:
                    tensor.detach_()


def _check(
    degree: int,
    tensors: Sequence[torch.Tensor],
    dimensions: Sequence[int],
    no_restore_buffers: Collection[torch.Tensor],
) -> None:
    if len(tensors) != len(dimensions):
        raise ValueError(
            f"{len(tensors)} tensors have {len(dimensions)} dimensions here: name the sequence dimension of each"
        )
    for number, (tensor, dimension) in enumerate(zip(tensors, dimensions, strict=True)):
        if not -tensor.ndim <= dimension < tensor.ndim:
            raise ValueError(f"tensor {number} has {tensor.ndim} dimensions, and no dimension {dimension}")
        if tensor.requires_grad:
            raise ValueError(
                f"tensor {number} requires a gradient, and tensors are split in place, which autograd does not follow: pass inputs of the "
                "model, and compute from them inside"
            )
        if degree > 1 and tensor.shape[dimension] % (2 * degree):
            raise ValueError(
                f"the sequences of tensor {number} are {tensor.shape[dimension]} long, which twice the context degree, {2 * degree}, "
                "does not divide: pad them"
            )
    known = {id(tensor) for tensor in tensors}
    if not all(id(tensor) in known for tensor in no_restore_buffers):
        raise ValueError("no_restore_buffers: a tensor is there that is not one of tensors")
