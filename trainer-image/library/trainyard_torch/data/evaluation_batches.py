"""Which samples each process sees when all go through a data set once. Pure.

Each has a range of its own, as long as the others' or one shorter, in batches of which the last may be smaller. All have the same number of them, so
that collectives inside the model (FSDP, tensor parallel) match: a process without samples repeats one, which does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trainyard_torch.data.batches import DataShard


class EvaluationBatch(NamedTuple):
    """What one process puts through the model at once.

    Attributes:
        samples: their numbers in the data set, shape (n,), from 1 on.
        counted: number of samples that count: all, or 0.
    """

    samples: NDArray[np.int64]
    counted: int


def evaluation_batches(size: int, batch: int, data_shard: DataShard) -> Iterator[EvaluationBatch]:
    """The batches of one process, in the order of the samples' numbers.

    Args:
        size: of the data set, from 1 on.
        batch: samples that a process puts through the model at once, from 1 on.
        data_shard: which of the processes that share the samples this is.
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
    """How many batches each process has."""
    share = -(-size // world_size)
    return -(-share // batch)
