"""Samples of a file of tokens: numbers of one type, one after the other, without a header.

Sample i is tokens[i * length : i * length + length + 1]: its first `length` tokens are the input, its last `length` the target, so that
neighbours share one token and each token is predicted once.
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
    """The samples of a file of tokens: mapped into memory where it lies on this machine, read in blocks where it does not.

    Args:
        url: of the file: a path, or anything that fsspec knows.
        length: tokens that a model sees of a sample.
        dtype: of the tokens in the file, an integer; the order of bytes is that of numpy's type (`"<u2"`).
        block: samples of a remote file that are read together; None: what makes a read of about 1 MiB. Give it to `SampleOrder(block=source.block)`.
        read_options: how a remote file is read; None: with `ReadOptions`'s own choices.

    Raises:
        ValueError: a number is out of its range, or the file is no file of such tokens.
        ReadError: the file is not there, or the store does not answer.
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
    """Tokens on this machine: the kernel reads what is used, and shares it among processes. Made by `token_dataset`.

    Attributes:
        block: 1: each sample is found by itself.
    """

    block = 1

    def __init__(self, path: str, length: int, dtype: np.dtype[Any], tokens: int) -> None:
        self.path, self.length, self.dtype, self.tokens = path, length, dtype, tokens
        self._map: NDArray[Any] | None = None

    def __len__(self) -> int:
        return (self.tokens - 1) // self.length

    def __getitem__(self, number: int) -> NDArray[np.int64]:
        """Sample `number`, shape (length + 1,).

        Raises:
            IndexError: there is no such sample.
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
        # A map is pickled by its content.
        return {**self.__dict__, "_map": None}


class RemoteTokens(BlockSource):
    """Tokens in an object store: one read of a range brings a block of samples. Made by `token_dataset`."""

    def __init__(
        self, reads: RangeReader, length: int, dtype: np.dtype[Any], tokens: int, block: int, read_options: ReadOptions
    ) -> None:
        super().__init__((tokens - 1) // length, block, read_options)
        self.reads, self.length, self.dtype, self.tokens = reads, length, dtype, tokens
        self._version = reads.version() if read_options.disk_cache else ""

    def _bounds(self, number: int) -> tuple[int, int]:
        """Bytes of the file; each block has the first token of the next too."""
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
