"""Samples of a token file: integers of one type without a header.

Sample i is tokens[i * length : i * length + length + 1]. Its first `length` tokens are the input, its last `length` tokens the target. So
adjacent samples share one token, and each token is predicted once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from trainyard_torch.data.range_reader import RangeReader, ReadError
from trainyard_torch.data.sources import BlockSource, ReadOptions

if TYPE_CHECKING:
    import threading

    from numpy.typing import DTypeLike, NDArray


MIB = 2**20


def token_dataset(
    url: str,
    length: int,
    dtype: DTypeLike = np.uint16,
    *,
    block: int | None = None,
    read_options: ReadOptions | None = None,
) -> LocalTokens | RemoteTokens:
    """Return the samples of a token file: mapped into memory if it is on this machine, otherwise read in blocks.

    Args:
        url: the file: a path, or any URL of fsspec.
        length: the tokens of a sample that the model sees.
        dtype: the integer type of the tokens in the file, with its byte order (`"<u2"`).
        block: samples of a remote file that are read together. None: reads of about 1 MiB. Pass it to `SampleOrder(block=source.block)`.
        read_options: how a remote file is read. None: the defaults of `ReadOptions`.

    Raises:
        ValueError: a number is out of range, or the file is no file of such tokens.
        ReadError: the file does not exist, or the store does not answer.
    """
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        raise ValueError(f"dtype must be a type of integers, as uint16, got {kind}")
    if length < 1:
        raise ValueError(f"length must be from 1 on, got {length}")
    read_options = read_options or ReadOptions()
    reads = RangeReader(url, read_options.options, read_options.retry)
    size = reads.size()
    if size % kind.itemsize:
        raise ValueError(
            f"{reads.url} has {size} bytes, which is no multiple of the {kind.itemsize} of {kind}: it has another dtype, or was cut off"
        )
    tokens = size // kind.itemsize
    if tokens <= length:
        raise ValueError(f"{reads.url} has {tokens} tokens, and a sample needs {length + 1}: make length smaller")
    if reads.local is not None:
        return LocalTokens(reads.local, length, kind, tokens)
    if block is None:
        block = max(1, MIB // (length * kind.itemsize))
    return RemoteTokens(reads, length, kind, tokens, block, read_options)


class LocalTokens:
    """Tokens on this machine. The kernel reads the pages that are used, and processes share them. Made by `token_dataset`.

    Attributes:
        block: 1: each sample is read by itself.
    """

    block = 1

    def __init__(self, path: str, length: int, dtype: np.dtype[Any], tokens: int) -> None:
        self.path, self.length, self.dtype, self.tokens = path, length, dtype, tokens
        self._map: NDArray[Any] | None = None

    def __len__(self) -> int:
        return (self.tokens - 1) // self.length

    def __getitem__(self, number: int) -> NDArray[np.int64]:
        """Return sample `number`, shape (length + 1,).

        Raises:
            IndexError: the number is out of range.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"samples are 0 to {len(self) - 1}, and {number} was asked for")
        if self._map is None:
            try:
                self._map = np.memmap(self.path, self.dtype, mode="r", shape=(self.tokens,))
            except (OSError, ValueError) as error:
                raise ReadError(f"cannot map {self.path}, which had {self.tokens} tokens: {error}") from error
        begin = int(number) * self.length
        return self._map[begin : begin + self.length + 1].astype(np.int64)

    @override
    def __getstate__(self) -> dict[str, Any]:
        # pickle would copy the content of the map.
        return {**self.__dict__, "_map": None}


class RemoteTokens(BlockSource):
    """Tokens in an object store: one range read fetches a block of samples. Made by `token_dataset`."""

    def __init__(
        self, reads: RangeReader, length: int, dtype: np.dtype[Any], tokens: int, block: int, read_options: ReadOptions
    ) -> None:
        super().__init__((tokens - 1) // length, block, read_options)
        self.reads, self.length, self.dtype, self.tokens = reads, length, dtype, tokens
        self._version = reads.version() if read_options.disk_cache else ""

    def _bounds(self, number: int) -> tuple[int, int]:
        """The bytes of the file. Each block includes the first token of the next block."""
        begin = number * self.block * self.length
        end = min(begin + self.block * self.length, self.size * self.length) + 1
        return begin * self.dtype.itemsize, end * self.dtype.itemsize

    @override
    def _bytes(self, number: int) -> int:
        begin, end = self._bounds(number)
        return end - begin

    @override
    def _largest(self) -> int:
        return self._bytes(0)

    @override
    def _key(self, number: int) -> str:
        return f"tokens {self.reads.url} {self._version} {self._bounds(number)}"

    @override
    def _whole(self, number: int, content: bytes) -> bool:
        return len(content) == self._bytes(number)

    @override
    def _fetch(self, number: int, closed: threading.Event) -> bytes:
        return self.reads.range(*self._bounds(number), closed=closed)

    @override
    def _sample(self, number: int, block: bytes) -> NDArray[np.int64]:
        begin = number % self.block * self.length * self.dtype.itemsize
        return np.frombuffer(block, self.dtype, self.length + 1, begin).astype(np.int64)
