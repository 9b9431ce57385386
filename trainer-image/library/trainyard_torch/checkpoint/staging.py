"""Copy the state of a training into host memory that is reused by each checkpoint, and pinned if the state is on a GPU."""

from __future__ import annotations

import copy
import ctypes
import logging
import mmap
import os
import weakref
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass  # private, and how torch tells a DTensor's kind
from torch.utils._pytree import tree_flatten, tree_unflatten  # private, and the type that torch's own stagers check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

logger = logging.getLogger(__name__)
ALIGNMENT = 64
"""Each tensor starts at a multiple of these bytes: a cache line, and enough for all dtypes."""
SHRINK = 2
"""New memory is allocated if the state needs less than one part in so many."""
PORTABLE = 1
"""`cudaHostRegisterPortable`: the memory is pinned for all devices of the process."""


class StagingBuffer:
    """Host memory for one copy of a state, which stays allocated: page faults and pinning cost more than the copy.

    One checkpoint uses it at a time, from `stage` to `release`. The tensors of a copy keep their memory alive, so a buffer may be dropped
    while a thread still reads a copy.

    Args:
        shared: whether another process can map the memory.

    Attributes:
        allocations: how often memory was allocated.
        file: the descriptor of the memory, if it is shared and allocated; else -1.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self.allocations = 0
        self.file = -1
        self._shared = shared
        self._memory: Any = None
        self._to_pin = self._pinned = self._in_use = False

    @property
    def size(self) -> int:
        """The allocated bytes."""
        return 0 if self._memory is None else len(self._memory)

    def stage(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of state dicts in host memory, independent of the training, when all of it is copied.

        Args:
            state: nested dictionaries and sequences of tensors and other values. DTensors keep their layout, and only this process's
                part is copied.

        Raises:
            RuntimeError: the last copy was not released.
        """
        if self._in_use:
            raise RuntimeError("the last copy of the state is still in use: call release() before stage()")
        leaves, shape = tree_flatten(dict(state))
        tensors = [each for leaf in leaves if isinstance(leaf, torch.Tensor) for each in _plain_tensors(leaf.detach())]
        places, need = _places(tensors)
        self._reserve(need, pinned=any(map(_on_gpu, tensors)))
        with _copies(tensors):
            hosts = iter([self._copy(each, place) for each, place in zip(tensors, places, strict=True)])
            staged = [
                _rebuilt(leaf.detach(), hosts) if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)
                for leaf in leaves
            ]
        self._in_use = True
        found: dict[str, Any] = tree_unflatten(staged, shape)
        return found

    def place_of(self, tensor: torch.Tensor) -> int | None:
        """Return the offset of a tensor of the copy in the memory; None if it lies elsewhere."""
        if not self.size or tensor.layout is not torch.strided or not tensor.numel() or tensor.device.type != "cpu":
            return None
        place = tensor.data_ptr() - ctypes.addressof(self._memory)
        return place if 0 <= place < self.size else None

    def release(self) -> None:
        """Allow the next `stage`, which overwrites the last copy."""
        self._in_use = False

    def _reserve(self, need: int, *, pinned: bool) -> None:
        if need <= self.size <= SHRINK * need and (self._to_pin or not pinned):
            return
        # Before the new one is allocated: there is not always room for both.
        self._memory, self._to_pin, self._pinned, self.file = None, pinned, False, -1
        if not need:
            return
        self._memory, self.file = _allocated(need, shared=self._shared)
        self._pinned = pinned and _pin(self._memory)
        self.allocations += 1

    def _copy(self, tensor: torch.Tensor, place: int | None) -> torch.Tensor:
        if place is None:
            return _by_torch(tensor)
        size = tensor.numel() * tensor.element_size()
        if not size:
            return torch.empty_like(tensor, device="cpu")
        # A storage of its own, and not a part of one: torch writes and clones whole storages.
        host = torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=place).view(tensor.dtype)
        # The strides of a clone: a transposed tensor is copied as it lies.
        host = host.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride())
        return host.copy_(tensor, non_blocking=self._pinned and _on_gpu(tensor))


def _plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors inside a DTensor or another wrapper; the tensor itself if it wraps none."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        if isinstance(inner := getattr(tensor, name), torch.Tensor):
            yield from _plain_tensors(inner)


def _rebuilt(tensor: torch.Tensor, hosts: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return the same kind of tensor around the next copies, in the order of `_plain_tensors`."""
    if not is_traceable_wrapper_subclass(tensor):
        return next(hosts)
    names, context = tensor.__tensor_flatten__()
    # From torch 2.15 on, not only tensors: a DTensor names its mesh.
    inner = {name: getattr(tensor, name) for name in names}
    inner |= {name: _rebuilt(part, hosts) for name, part in inner.items() if isinstance(part, torch.Tensor)}
    made: torch.Tensor = type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())
    return made


def _places(tensors: list[torch.Tensor]) -> tuple[list[int | None], int]:
    """Return the offset of each tensor in the memory, None for those that torch must copy, and the bytes of all."""
    places: list[int | None] = []
    end = 0
    for tensor in tensors:
        ordinary = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized
        places.append(end if ordinary else None)
        if ordinary:
            size = tensor.numel() * tensor.element_size()
            end += -(-size // ALIGNMENT) * ALIGNMENT
    return places, end


def _by_torch(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a sparse or quantized tensor, or one of an unknown class, into new memory."""
    copied: torch.Tensor = tensor.to("cpu", copy=True)
    return copied


@contextmanager
def _copies(tensors: list[torch.Tensor]) -> Iterator[None]:
    """Start copies of GPU tensors in a stream of their own, after what training has queued. Wait for them at the end."""
    streams = {}
    try:
        with ExitStack() as stack:
            for device in {tensor.device for tensor in tensors if _on_gpu(tensor)}:
                streams[device] = torch.cuda.Stream(device)
                streams[device].wait_stream(torch.cuda.current_stream(device))
                stack.enter_context(torch.cuda.stream(streams[device]))
            yield
    finally:
        # The training may change the tensors, and reuse their memory, from here on; also after an error.
        for stream in streams.values():
            stream.synchronize()


def _on_gpu(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_cuda)


def _allocated(size: int, *, shared: bool) -> tuple[Any, int]:
    """Return an array of zeros that is freed with the last tensor in it, and its descriptor, which is closed then, too."""
    # Without huge pages: to make them, the kernel moves memory during the first copy, and later copies are no faster.
    if not shared:
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return (ctypes.c_byte * size).from_buffer(mapped), -1
    # No file of /dev/shm: its size is limited, and the file would outlive this process.
    file = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
    os.ftruncate(file, size)
    memory = (ctypes.c_byte * size).from_buffer(mmap.mmap(file, size))
    weakref.finalize(memory, os.close, file)
    return memory, file


def _pin(memory: Any) -> bool:
    """Lock the memory for copies by a GPU. Return whether it is locked.

    Not `torch.empty(pin_memory=True)`, which rounds up to a power of two: 12 GB would take 16.
    """
    # gpu-only: the copy of the state in pinned memory
    runtime, address = torch.cuda.cudart(), ctypes.addressof(memory)
    if wrong := int(runtime.cudaHostRegister(address, len(memory), PORTABLE)):
        logger.warning(
            "checkpoints are copied more slowly: %d bytes of memory cannot be pinned: CUDA error %d", len(memory), wrong
        )
        return False
    # Before it is unmapped. At the exit of the process the driver does so itself.
    weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False
    return True
