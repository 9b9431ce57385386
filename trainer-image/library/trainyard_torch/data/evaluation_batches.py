"""Assign samples to processes for one pass over a dataset. Pure.

Each process has its own range; ranges differ by at most one sample. All have the same number of batches, so that collectives inside the model
(FSDP, tensor parallel) match. A process without samples repeats one, which does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trainyard_torch.data.batches import DataShard


class EvaluationBatch(NamedTuple):
    """The samples that a process passes through the model at once.

    Attributes:
        samples: their numbers in the dataset, shape (n,), n at least 1.
        counted: the number of samples that count: all, or 0.
    """

    samples: NDArray[np.int64]
    counted: int


def evaluation_batches(size: int, batch: int, data_shard: DataShard) -> Iterator[EvaluationBatch]:
    """The batches of one process, ordered by sample number.

    Args:
        size: the size of the dataset, at least 1.
        batch: the samples that a process passes through the model at once, at least 1.
        data_shard: the shard of this process.
    """
    begin, end = (size * rank // data_shard.world_size for rank in (data_shard.rank, data_shard.rank + 1))
    for number in range(length(size, batch, data_shard.world_size)):
        low = begin + number * batch
        high = min(low + batch, end)
        if low < high:
            yield EvaluationBatch(np.arange(low, high, dtype=np.int64), high - low)
        else:
            yield EvaluationBatch(np.array([min(begin, size - 1)], dtype=np.int64), 0)


def length(size: int, batch: int, world_size: int) -> int:
    """Return the number of batches of each process."""
    share = -(-size // world_size)
    return -(-share // batch)
