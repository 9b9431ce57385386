"""Make a training give the same bits when it is repeated, and seed random numbers of tensors that are spread over processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

VARIABLES = {
    # cuBLAS reads it on first use.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # NCCL reads these for its first communicator. The order of its sums depends on the algorithm, which it chooses by size and load.
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_LAUNCH_MODE": "GROUP",
    # Switches that add up in the network, in an order of their own.
    "NCCL_COLLNET_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
}
"""What cuBLAS and NCCL read. The environment has precedence. Source: documentation of cuBLAS (reproducibility) and of NCCL's variables."""


def use_deterministic_algorithms() -> None:
    """Use torch's deterministic algorithms in this process, and raise an error if there is none. Call it before the process group is made.

    Uninitialized memory is not filled, which torch does by default then: it only helps programs that read such memory.
    """
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.utils.deterministic.fill_uninitialized_memory = False


def seed_distributed_tensors(seed: int, mesh: DeviceMesh) -> None:
    """Seed the random numbers of DTensors on GPUs, such as dropout of activations that are split (tensor parallel).

    Up to torch 2.8, they have a generator of their own, which starts from rank 0's at its first use. All processes of the mesh pass the same seed.

    Args:
        seed: from 0 to 2**64 - 1.
        mesh: the processes that share the tensors.
    """
    # gpu-only: random numbers of distributed tensors
    if mesh.device_type == "cuda":
        from torch.distributed.tensor._random import manual_seed  # noqa: PLC0415 - takes a second to import

        manual_seed(seed, mesh)
