"""Estimate the memory of one rank for a model and its parallelism, before any GPU is used.

The model runs one micro-batch on the meta device, in a process group without other processes: nothing is computed and nothing is sent.
"""

from __future__ import annotations

import warnings
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore  # private, and what torch's own tools estimate with
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from trainyard_torch.checkpoint import optimizer_state
from trainyard_torch.mesh import Parallelism
from trainyard_torch.parallel.fully_sharded import shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

ONE = Parallelism()
GATHERED_BLOCKS = 2
"""Blocks whose parameters FSDP has gathered at a time: the one that is computed, and the next one."""


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of one rank in bytes. What torch's allocator, NCCL and CUDA's context take comes on top: 5 to 20 %.

    Attributes:
        parameters: its shards of the parameters, and its buffers.
        gradients: their gradients.
        optimizer_states: what the optimizer keeps.
        activations: the most that forward and backward pass of a micro-batch hold, without gradients of parameters.
        gathered: whole parameters and gradients of blocks, which FSDP holds for a moment.
    """

    parameters: int
    gradients: int
    optimizer_states: int
    activations: int
    gathered: int

    @property
    def total(self) -> int:
        """The most at a time: activations, or what the optimizer's step needs, are on top of the states."""
        return self.parameters + self.gradients + self.optimizer_states + self.activations + self.gathered


def estimate_memory(
    build: Callable[[DeviceMesh], nn.Module],
    loss: Callable[[nn.Module], torch.Tensor],
    *,
    world_size: int,
    parallelism: Parallelism = ONE,
    blocks: Callable[[nn.Module], Iterable[nn.Module]] | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = torch.optim.AdamW,
) -> MemoryEstimate:
    """Return the memory of rank 0 for a training with these processes. It takes no memory of that size, and no other process.

    Both functions run with the meta device as the default.

    Args:
        build: makes the model, or one stage of a pipeline. It may call `tensor_parallel` and `checkpoint_activations`, and not `shard`.
        loss: makes a micro-batch, and returns its loss.
        world_size: the number of processes.
        parallelism: the degrees of parallelism.
        blocks: returns the blocks for `shard`. None: each process has all parameters (`replicate`).
        optimizer: makes the optimizer.

    Raises:
        ValueError: world_size is not positive, the degrees do not divide it, the model is not on the meta device, or a process group exists already.
    """
    with _alone(world_size), warnings.catch_warnings():
        # Values do not matter here.
        warnings.filterwarnings("ignore", "DTensor random operators", UserWarning)
        mesh = parallelism.mesh(world_size, "cpu")
        with torch.device("meta"):
            model = build(mesh)
            if found := [name for name, each in model.named_parameters() if not each.is_meta]:
                raise ValueError(
                    f"build made {found[0]} on {model.get_parameter(found[0]).device}: leave the device to estimate_memory"
                )
            activations = _activations(model, loss)
            gathered = 0
            if blocks is not None:
                chosen = list(blocks(model))
                gathered = _gathered(model, chosen)
                shard(model, mesh, blocks=chosen)
        # With the default device: an optimizer reads its own counters.
        made = optimizer(model.parameters())
        trained = [each for group in made.param_groups for each in group["params"] if each.requires_grad]
        optimizer_state.initialise(made, trained)
        states = [value for state in made.state.values() for value in state.values()]
        return MemoryEstimate(
            parameters=_bytes([*model.parameters(), *model.buffers()]),
            gradients=_bytes(trained),
            optimizer_states=_bytes(states),
            activations=activations,
            gathered=gathered,
        )


@contextmanager
def _alone(world_size: int) -> Iterator[None]:
    """Make a process group of that size, of which only this process exists."""
    if world_size < 1:
        raise ValueError(f"world_size must be a number of processes from 1 on, not {world_size}")
    if dist.is_initialized():
        raise ValueError(
            "estimate_memory makes a process group of its own: call it before start() or init_process_group"
        )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _activations(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> int:
    """Return the most bytes that a forward and backward pass hold. Gradients of parameters do not count: they are dropped at once."""
    hooks = [each.register_post_accumulate_grad_hook(_drop) for each in model.parameters() if each.requires_grad]
    try:
        with _Most() as most:
            loss(model).backward()
    finally:
        for hook in hooks:
            hook.remove()
    return int(most.bytes)


def _drop(parameter: torch.Tensor) -> None:
    parameter.grad = None


class _Most(TorchDispatchMode):  # type: ignore[misc]  # torch is there where this runs
    """Measures the most bytes of tensors that operations inside make, at a time.

    Attributes:
        bytes: the most so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: set[int] = set()
        self._now = self.bytes = 0

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = {id(_storage(each)) for each in args if isinstance(each, torch.Tensor)}
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, torch.Tensor) and id(storage := _storage(each)) not in self._known | inputs:
                self._known.add(id(storage))
                self._now += storage.nbytes()
                weakref.finalize(storage, self._freed, id(storage), storage.nbytes())
        self.bytes = max(self.bytes, self._now)
        return out

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size


def _storage(tensor: torch.Tensor) -> Any:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()


def _gathered(model: nn.Module, blocks: list[nn.Module]) -> int:
    """Return the bytes of whole parameters and gradients that FSDP holds at most: of two blocks, and of all that is in no block."""
    inside = {parameter for block in blocks for parameter in block.parameters()}
    rest = _bytes([parameter for parameter in model.parameters() if parameter not in inside])
    sizes = sorted((_bytes(list(block.parameters())) for block in blocks), reverse=True)
    largest = sizes[0] if sizes else 0
    # The rest is gathered during the whole step; gradients are whole in one unit at a time.
    return rest + sum(sizes[:GATHERED_BLOCKS]) + max(rest, largest)


def _bytes(values: Iterable[Any]) -> int:
    """Return the bytes of these tensors on this rank."""
    local = [
        each.to_local() if isinstance(each, DTensor) else each for each in values if isinstance(each, torch.Tensor)
    ]
    return sum(each.numel() * each.element_size() for each in local)
