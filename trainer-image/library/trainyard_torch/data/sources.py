"""Where samples come from: map-style datasets, and datasets whose samples are stored in blocks. Does not import torch.

A source is what torch calls a map-style data set: `len(source)` and `source[number]`, and where it can find many at once, `__getitems__`, by which
torch's own DataLoader asks too. So any `torch.utils.data.Dataset` and any list is a source, and each source of ours is a data set.
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
    """What the loader needs."""

    def __len__(self) -> int:
        """How many samples there are."""

    def __getitem__(self, number: int, /) -> Any:
        """One of them."""


def found(source: Source, numbers: Sequence[int]) -> list[Any]:
    """These samples, in this order; all at once where the source can do that.

    Raises:
        ValueError: the source gave another number of samples than it was asked for.
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
    """How blocks are read and held.

    Attributes:
        memory: bytes of blocks that each process may hold.
        disk_cache: a cache on the node's disk, which its processes share; None: each process reads for itself.
        threads: blocks that a process reads at the same time, from 1 on.
        retry: with a store that fails.
        options: for fsspec's file system: `{"endpoint_url": …}`.
    """

    memory: int = GIB
    disk_cache: DiskCache | None = None
    threads: int = 8
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    options: dict[str, Any] = field(default_factory=dict)


class BlockSource(ABC):
    """Samples of which `block` that follow each other are read together.

    Blocks are read in threads, each once, and cached in memory up to a limit: with `SampleOrder(block=…)` only one window of them is needed at
    a time. It may be given to other processes, by fork or by pickle.

    Args:
        size: the number of samples, from 1 on.
        block: samples of a block; the last may have fewer.
        read_options: how blocks are read and held.

    Raises:
        ValueError: a number is out of its range.
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
        """The samples of these numbers, in this order.

        Raises:
            IndexError: there is no such sample.
            ReadError: a block could not be read, or is not what it was.
        """
        blocks = self._blocks.get(self._needed(numbers))
        return [self._sample(number, blocks[number // self.block]) for number in map(int, numbers)]

    def prepare(self, numbers: NDArray[np.int64]) -> None:
        """Start to read the blocks of these samples in the background, without waiting."""
        self._blocks.begin(self._needed(numbers))

    def check(self, order: SampleOrder, reach: int) -> None:
        """That in this order each block is read once, while samples within `reach` positions of it are loaded at a time.

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
        """How large a block is."""

    @abstractmethod
    def _largest(self) -> int:
        """How large a block is at most."""

    @abstractmethod
    def _key(self, number: int) -> str:
        """What names a block's content among all that there are."""

    @abstractmethod
    def _whole(self, number: int, content: bytes) -> bool:
        """Whether this is the block."""

    @abstractmethod
    def _fetch(self, number: int, closed: threading.Event) -> bytes:
        """The block from the store; what is returned is `_whole`."""

    @abstractmethod
    def _sample(self, number: int, block: bytes) -> Any:
        """One sample of its block."""
