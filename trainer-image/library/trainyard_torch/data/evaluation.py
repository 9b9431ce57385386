"""A data set gone through once, by all processes together: for validation and tests. Knows nothing of the training, and changes nothing of it."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate

from trainyard_torch.data.batch_builder import BatchBuilder, Transform, moved
from trainyard_torch.data.batches import MicroBatch
from trainyard_torch.data.evaluation_batches import EvaluationBatch, evaluation_batches, length
from trainyard_torch.data.sample_order import SampleOrder
from trainyard_torch.data.sources import BlockSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from trainyard_torch.data.batches import DataShard
    from trainyard_torch.data.sources import Source


class CountedBatch(NamedTuple):
    """A batch that is ready for the model.

    Attributes:
        batch: what `collate_fn` made of its samples; by default tensors with the samples as their first dimension.
        counted: how many of its samples count: all of them, or 0 where the process takes part for the others' sake alone.
    """

    batch: Any
    counted: int


class EvaluationLoader:
    """Each sample of a source exactly once, over all processes: `for batch, count in evaluation`. Each time it is gone through is the same.

    All processes have the same number of batches, and have to go through all of them. What they found is put together by torch's own
    `all_reduce`, over the data dimension of the mesh: sums of what was found, and of the second number, how many samples count.

    Args:
        source: a list, a torch data set with numbers for keys, or one of `token_dataset` and `RecordDataset`. It stays open.
        batch_size: samples that a process puts through the model at once, from 1 on; the last batch may have fewer.
        data_shard: which of the processes that share the samples this is: `training.data_shard`.
        transform: `transform(sample, rng)` makes another sample of one, with a numpy generator that depends on (seed, sample) alone.
        seed: of those generators.
        collate_fn: makes a batch of a list of samples; by default torch's.
        prefetch: batches that are loaded ahead of the one in use, from 0 on.
        num_workers: threads that load them; 0: they are loaded when asked for.
        device: where tensors go; None: they stay where `collate_fn` made them.

    Raises:
        ValueError: a number is out of its range, there is no such process, or the source has no samples or too little memory.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        source: Source,
        batch_size: int,
        data_shard: DataShard,
        *,
        transform: Transform | None = None,
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        prefetch: int = 2,
        num_workers: int = 2,
        device: torch.device | str | None = None,
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("prefetch", prefetch, 0),
            ("num_workers", num_workers, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be from {least} on, got {value}")
        if not 0 <= data_shard.rank < data_shard.world_size:
            raise ValueError(f"rank must be from 0 to {data_shard.world_size - 1}, got {data_shard.rank}")
        if not len(source):
            raise ValueError("the source has no samples: there is nothing to evaluate")
        if isinstance(source, BlockSource):
            source.check(SampleOrder(len(source), shuffled=False), (1 + prefetch) * batch_size)
        self._builder, self._seed = BatchBuilder(source, transform, collate_fn), seed
        self._size, self._batch_size, self._data_shard = len(source), batch_size, data_shard
        self._prefetch, self._num_workers, self._device = prefetch, num_workers, device

    def __len__(self) -> int:
        """How many batches each process has."""
        return length(self._size, self._batch_size, self._data_shard.world_size)

    def __iter__(self) -> Iterator[CountedBatch]:
        """All batches of this process.

        Raises:
            Exception: what the source, `transform` or `collate_fn` raised, with a note of the samples.
        """
        coming = evaluation_batches(self._size, self._batch_size, self._data_shard)
        for batch, count in self._threaded(coming) if self._num_workers else map(self._load, coming):
            yield CountedBatch(batch if self._device is None else moved(batch, torch.device(self._device)), count)

    def _threaded(self, coming: Iterator[EvaluationBatch]) -> Iterator[CountedBatch]:
        with ThreadPoolExecutor(self._num_workers, thread_name_prefix="trainyard-evaluate") as pool:
            loading = deque(self._begun(pool, planned) for planned in islice(coming, self._prefetch))
            try:
                for planned in coming:
                    loading.append(self._begun(pool, planned))
                    yield loading.popleft().result()
                while loading:
                    yield loading.popleft().result()
            finally:
                # If the consumer stops early, loads that have not started are cancelled.
                pool.shutdown(wait=False, cancel_futures=True)

    def _begun(self, pool: ThreadPoolExecutor, planned: EvaluationBatch) -> Future[CountedBatch]:
        if isinstance(self._builder.source, BlockSource):
            self._builder.source.prepare(planned.samples)
        return pool.submit(self._load, planned)

    def _load(self, planned: EvaluationBatch) -> CountedBatch:
        samples, epochs = planned.samples, np.zeros_like(planned.samples)
        return CountedBatch(
            self._builder.part(MicroBatch(samples, epochs, 1.0, last=True), self._seed).batch, planned.counted
        )
