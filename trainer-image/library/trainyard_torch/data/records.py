"""Write samples of any length in bytes to indexed shards, and read them as a source.

A dataset is a folder. Each shard `shard-000000` is a file of `block` samples; the last has fewer. It begins with 8
bytes `TYREC001`. The number of samples and their lengths follow as little-endian unsigned 64-bit integers, then the
samples. `index.json` has the number of samples, `block`, the size and SHA-256 of each shard, and a checksum of its own.
It is written last, so a folder without it is no dataset. One read fetches one shard: 4 to 64 MB are good for an object
store.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from trainyard_torch.checkpoint.store import Store
from trainyard_torch.data.range_reader import RangeReader, ReadError
from trainyard_torch.data.sources import BlockSource, ReadOptions

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

FORMAT = 1
MAGIC = b"TYREC001"
INDEX = "index.json"
NUMBER = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of samples: its size in bytes, and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Index:
    """The content of a dataset: the number of samples, samples per shard, and the shards."""

    samples: int
    block: int
    shards: tuple[Shard, ...]

    def text(self) -> str:
        """Return the index as JSON with a checksum of its own."""
        content = {
            "format": FORMAT, "samples": self.samples, "block": self.block,
            "shards": [[shard.size, shard.sha256] for shard in self.shards],
        }  # fmt: skip
        return json.dumps({**content, "sha256": _digest(content)}) + "\n"

    @classmethod
    def parse(cls, text: bytes, url: str) -> Index:
        """Return the index from its JSON.

        Raises:
            ReadError: it is incomplete, was changed, or belongs to a later release.
        """
        try:
            content = json.loads(text)
            stored = content.pop("sha256")
            made = content["format"]
            if made != FORMAT:
                raise ReadError(
                    f"{url} has format {made!r}, and this release reads {FORMAT}: a later one has written it"
                )
            if _digest(content) != stored:
                raise ReadError(f"{url} was changed after it was written: its checksum is another one")
            return cls(content["samples"], content["block"], tuple(Shard(*each) for each in content["shards"]))
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ReadError(f"{url} cannot be read: it is no index of ours, or was cut off") from error


def write_records(url: str, samples: Iterable[bytes], *, block: int, options: dict[str, Any] | None = None) -> Index:
    """Write samples to a dataset. One shard at a time is held in memory.

    Args:
        url: a folder without a dataset: a path, or any URL of fsspec.
        samples: bytes of any length; at least one sample.
        block: samples per shard, so that it has 4 to 64 MB; shuffle ordered samples before writing.
        options: options for fsspec's file system.

    Raises:
        ValueError: the folder has a dataset, there are no samples, or a sample is not bytes.
        StoreError: the store cannot be written to.
    """
    if block < 1:
        raise ValueError(f"block must be from 1 on, got {block}")
    store = Store(url, timeout_seconds=None, **(options or {}))
    if store.size(INDEX) is not None:
        raise ValueError(f"{store.at(INDEX)} is there already: give a folder of its own, or remove it")
    shards: list[Shard] = []
    held: list[bytes] = []
    count = 0

    def write() -> None:
        content = packed(held)
        store.write(name(len(shards)), content)
        shards.append(Shard(len(content), hashlib.sha256(content).hexdigest()))
        held.clear()

    for sample in samples:
        if not isinstance(sample, bytes | bytearray | memoryview):
            raise ValueError(f"sample {count} must be bytes, got {type(sample).__name__}: encode it before")  # noqa: TRY004 - as for all wrong arguments
        held.append(bytes(sample))
        count += 1
        if len(held) == block:
            write()
    if held:
        write()
    if not count:
        raise ValueError("there is no sample to write: the iterable was empty")
    index = Index(count, block, tuple(shards))
    store.write(INDEX, index.text().encode())
    return index


class RecordDataset(BlockSource):
    """The samples of a dataset from `write_records`.

    Args:
        url: the URL of its folder.
        decode: makes a sample of its bytes, in the loading thread. None: the bytes are the sample.
        read_options: how shards are read and cached. None: the defaults of `ReadOptions`.

    Attributes:
        block: samples per shard: pass it to `SampleOrder(block=source.block)`.
        reads: counts the reads.

    Raises:
        ValueError: a number is out of range.
        ReadError: there is no dataset, or the store does not answer.
    """

    def __init__(
        self,
        url: str,
        decode: Callable[[bytes], Any] | None = None,
        *,
        read_options: ReadOptions | None = None,
    ) -> None:
        read_options = read_options or ReadOptions()
        self.reads = RangeReader(url, read_options.options, read_options.retry)
        self.index = Index.parse(self.reads.whole(INDEX), self.reads.at(INDEX))
        self.decode = decode
        super().__init__(self.index.samples, self.index.block, read_options)

    @override
    def _bytes(self, number: int) -> int:
        return self.index.shards[number].size

    @override
    def _largest(self) -> int:
        return max(shard.size for shard in self.index.shards)

    @override
    def _key(self, number: int) -> str:
        return f"record {self.index.shards[number].sha256}"

    @override
    def _whole(self, number: int, content: bytes) -> bool:
        return hashlib.sha256(content).hexdigest() == self.index.shards[number].sha256

    @override
    def _fetch(self, number: int, closed: threading.Event) -> bytes:
        path, size = name(number), self.index.shards[number].size
        content = self.reads.range(0, size, path, closed)
        if not self._whole(number, content):
            raise ReadError(
                f"{self.reads.at(path)} does not match {INDEX}: the SHA-256 of its first {size} bytes differs. It was changed, "
                "or is of another data set"
            )
        return content

    @override
    def _sample(self, number: int, block: bytes) -> Any:
        sample = unpacked(block, number % self.block)
        return sample if self.decode is None else self.decode(sample)


def name(number: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{number:06}"


def packed(samples: list[bytes]) -> bytes:
    """Return a shard with these samples."""
    head = np.array([len(samples), *map(len, samples)], dtype=NUMBER)
    return b"".join((MAGIC, head.tobytes(), *samples))


def unpacked(shard: bytes, at: int) -> bytes:
    """Return the sample at position `at` of a shard."""
    begin, wide = len(MAGIC), NUMBER.itemsize
    count = int(np.frombuffer(shard, NUMBER, 1, begin)[0])
    lengths = np.frombuffer(shard, NUMBER, count, begin + wide)
    start = begin + wide * (1 + count) + int(lengths[:at].sum())
    return shard[start : start + int(lengths[at])]


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
