"""Sources of samples: map-style datasets, and datasets whose samples are stored in blocks. Does not import torch.

A source is a map-style dataset of torch: `len(source)` and `source[number]`, and optionally `__getitems__`, which torch's own DataLoader uses,
too. So any `torch.utils.data.Dataset` and any list is a source, and each source of this library is a dataset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from trainyard_torch.data.blocks import Blocks
from trainyard_torch.data.range_reader import RetryPolicy

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from trainyard_torch.data.disk_cache import DiskCache
    from trainyard_torch.data.sample_order import SampleOrder

GIB = 2**30


@runtime_checkable
class Source(Protocol):
    """The interface that the loader needs."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, number: int, /) -> Any:
        """Return one sample."""


def found(source: Source, numbers: Sequence[int]) -> list[Any]:
    """Return these samples in this order, all at once if the source supports it.

    Raises:
        ValueError: the source returned another number of samples than requested.
    """
    many: Callable[[list[int]], list[Any]] | None = getattr(source, "__getitems__", None)
    if many is None:
        return [source[number] for number in numbers]
    samples = many(list(numbers))
    if len(samples) != len(numbers):
        raise ValueError(f"{type(source).__name__} was asked for {len(numbers)} samples and gave {len(samples)}")
    return samples


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How blocks are read and cached.

    Attributes:
        memory: the bytes of blocks that each process may cache.
        disk_cache: a cache on the node's disk that its processes share. None: each process reads for itself.
        threads: the number of blocks that a process reads at the same time, at least 1.
        retry: how failed reads are retried.
        options: options for fsspec's file system: `{"endpoint_url": …}`.
    """

    memory: int = GIB
    disk_cache: DiskCache | None = None
    threads: int = 8
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    options: dict[str, Any] = field(default_factory=dict)


class BlockSource(ABC):
    """A source that reads adjacent samples together, in blocks.

    Threads read each block once, and cache it in memory up to a limit. `SampleOrder(block=…)` needs only one window of blocks at a time. The
    source may be given to other processes by fork or pickle.

    Args:
        size: the number of samples, at least 1.
        block: the samples of a block; the last may have fewer.
        read_options: how blocks are read and cached.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, size: int, block: int, read_options: ReadOptions) -> None:
        for name, value in (("size", size), ("block", block)):
            if value < 1:
                raise ValueError(f"{name} must be from 1 on, got {value}")
        self.size, self.block, self.disk_cache = size, block, read_options.disk_cache
        self._blocks = Blocks(self._read, self._bytes, read_options.memory, read_options.threads)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return the samples of these numbers in this order.

        Raises:
            IndexError: a number is out of range.
            ReadError: a block cannot be read, or its content is wrong.
        """
        blocks = self._blocks.get(self._needed(numbers))
        return [self._sample(number, blocks[number // self.block]) for number in map(int, numbers)]

    def prepare(self, numbers: NDArray[np.int64]) -> None:
        """Start to read the blocks of these samples in the background, without waiting."""
        self._blocks.begin(self._needed(numbers))

    def check(self, order: SampleOrder, reach: int) -> None:
        """Check that in this order each block is read once, if samples within `reach` positions are loaded at a time.

        Raises:
            ValueError: blocks would be read repeatedly. The message says what to change.
        """
        if order.shuffled and order.block % self.block:
            raise ValueError(
                f"the order has block {order.block}, and this source reads {self.block} samples at a time: each block would be read many "
                f"times. Make it SampleOrder(block={self.block}), or a multiple of it"
            )
        span = order.block * order.window if order.shuffled else self.block
        windows = 1 + -(-reach // span)
        blocks = min(-(-self.size // self.block), windows * (span // self.block))
        needed, memory = blocks * self._largest(), self._blocks.memory
        if needed > memory:
            raise ValueError(
                f"{blocks} blocks are needed at a time, which may have {needed} bytes, and memory is {memory}: give the source "
                f"ReadOptions(memory={needed}), or the order a smaller window than {order.window}, or the loader fewer steps ahead"
            )

    def close(self) -> None:
        """Stop all threads and drop all blocks. Later requests start again."""
        self._blocks.close()

    def _needed(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[int]:
        wanted = np.asarray(numbers, dtype=np.int64)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < self.size):
            raise IndexError(f"samples are 0 to {self.size - 1}, and {wanted.min()} to {wanted.max()} were asked for")
        return list(dict.fromkeys((wanted // self.block).tolist()))

    def _read(self, number: int, closed: threading.Event) -> bytes:
        if self.disk_cache is None:
            return self._fetch(number, closed)
        return self.disk_cache.get(
            self._key(number), lambda content: self._whole(number, content), lambda: self._fetch(number, closed)
        )

    @abstractmethod
    def _bytes(self, number: int) -> int:
        """Return the size of a block in bytes."""

    @abstractmethod
    def _largest(self) -> int:
        """Return the largest size of a block in bytes."""

    @abstractmethod
    def _key(self, number: int) -> str:
        """Return a key that identifies the content of a block."""

    @abstractmethod
    def _whole(self, number: int, content: bytes) -> bool:
        """Return whether the content is this block's."""

    @abstractmethod
    def _fetch(self, number: int, closed: threading.Event) -> bytes:
        """Read the block from the store. The result passes `_whole`."""

    @abstractmethod
    def _sample(self, number: int, block: bytes) -> Any:
        """Return one sample of its block."""
