"""Iterate over a dataset once with all processes, for validation and tests. Independent of the training, and without effect on it."""

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
        batch: the result of `collate_fn`; by default tensors whose first dimension is the sample.
        counted: the number of samples that count: all of them, or 0 if the process only takes part in the collectives.
    """

    batch: Any
    counted: int


class EvaluationLoader:
    """Iterates over each sample of a source exactly once, over all processes: `for batch, count in evaluation`. Each iteration is the same.

    All processes have the same number of batches, and must iterate over all of them. Combine the results by torch's `all_reduce` over the data
    dimension of the mesh: the sums of the results, and of the second number, which is how many samples count.

    Args:
        source: a list, a map-style dataset of torch, or the result of `token_dataset` or `RecordDataset`. It stays open.
        batch_size: samples that a process passes through the model at once, at least 1. The last batch may be smaller.
        data_shard: the shard of this process: `training.data_shard`.
        transform: `transform(sample, rng)` returns a changed sample. The numpy generator depends on (seed, sample) alone.
        seed: the seed of those generators.
        collate_fn: makes a batch of a list of samples; by default torch's.
        prefetch: the number of batches that are loaded ahead, from 0 on.
        num_workers: the number of loading threads. 0: batches are loaded on request.
        device: the device for tensors. None: they stay where `collate_fn` made them.

    Raises:
        ValueError: a number or the rank is out of range, or the source has no samples or too little memory.
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
        """Return the number of batches of each process."""
        return length(self._size, self._batch_size, self._data_shard.world_size)

    def __iter__(self) -> Iterator[CountedBatch]:
        """Yield all batches of this process.

        Raises:
            Exception: the error of the source, `transform` or `collate_fn`, with a note that names the samples.
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
