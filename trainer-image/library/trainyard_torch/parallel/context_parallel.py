"""Context parallel: each sequence spread over processes, which pass keys and values round for attention. Torch's own, and still a prototype there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch.distributed.tensor.experimental import context_parallel as torch_context_parallel

from trainyard_torch.mesh import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from torch.distributed.device_mesh import DeviceMesh


@contextmanager
def context_parallel(mesh: DeviceMesh, tensors: Sequence[torch.Tensor], dimensions: Sequence[int]) -> Iterator[None]:
    """Inside, each tensor is this process's part of the sequences, and `torch.nn.functional.scaled_dot_product_attention` knows of the rest.

    Forward and backward pass both belong inside. All that has a sequence dimension is to be named: inputs, targets, and buffers such as
    positions; they are split in place, and restored at the end. The loss is then the mean of this process's part; gradients are
    averaged over the parts by `replicate` or `shard`, as they are over samples. Attention must be called as
    `torch.nn.functional.scaled_dot_product_attention`, causal (so are the parts cut that each has as much to do).
    With one process in `mesh["context"]` nothing is done. Source: Liu et al. 2023, Ring attention.

    Args:
        mesh: that of `Parallelism.mesh`.
        tensors: no parameters.
        dimensions: the sequence dimension of each.

    Raises:
        ValueError: there are not as many dimensions as tensors, a length is not divided by twice the context degree, or the mesh is of CPUs.
    """
    degree = size(mesh, "context")
    if len(tensors) != len(dimensions):
        raise ValueError(
            f"{len(tensors)} tensors have {len(dimensions)} dimensions here: name the sequence dimension of each"
        )
    for number, (tensor, dimension) in enumerate(zip(tensors, dimensions, strict=True)):
        if not -tensor.ndim <= dimension < tensor.ndim:
            raise ValueError(f"tensor {number} has {tensor.ndim} dimensions, and no dimension {dimension}")
        if degree > 1 and tensor.shape[dimension] % (2 * degree):
            raise ValueError(
                f"the sequences of tensor {number} are {tensor.shape[dimension]} long, which twice the context degree, {2 * degree}, "
                "does not divide: pad them"
            )
    if degree == 1:
        yield
        return
    if mesh.device_type == "cpu":
        raise ValueError(
            "context parallel needs GPUs: torch has no attention over several CPUs; leave spec.parallelism.context at 1 here"
        )
    # gpu-only: attention over several devices
    with torch_context_parallel(mesh["context"], buffers=list(tensors), buffer_seq_dims=list(dimensions)):
        yield
