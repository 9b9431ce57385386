"""The same steps through torch's DataLoader with worker processes, for transforms that are slow in Python. Does not track the position."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, default_collate, get_worker_info
from typing_extensions import override

from trainyard_torch.data.batch_builder import BatchBuilder, LoadedMicroBatch, Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainyard_torch.data.batches import Batches, DataShard
    from trainyard_torch.data.sources import Source


class StepDataset(IterableDataset[list[LoadedMicroBatch]]):  # type: ignore[misc]  # it is Any where torch is not installed
    """The steps of a training from the position of `batches`, for `DataLoader(StepDataset(…), batch_size=None, num_workers=…)`.

    Worker w of n builds steps w, w + n, …, and the DataLoader takes one from each in turn. So steps come in the order of `Loader`, with the same
    arguments and random numbers. Each worker caches its own blocks. The caller tracks the position, since prefetched steps do not count:
    call `batches = batches.after()` after each step, and store `batches.state()` in the checkpoint.

    Raises:
        ValueError: the rank is out of range, or the order does not fit the source.
    """

    def __init__(
        self,
        source: Source,
        batches: Batches,
        data_shard: DataShard,
        *,
        transform: Transform | None = None,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        self._builder = BatchBuilder(source, transform, collate_fn)
        self._builder.check(batches, prefetch=0)
        batches.step(data_shard)
        self._batches, self._data_shard = batches, data_shard

    @override
    def __iter__(self) -> Iterator[list[LoadedMicroBatch]]:
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in count(first, stride):
            yield self._builder.step(self._batches.after(number), self._data_shard)
