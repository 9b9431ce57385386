"""The same steps through torch's DataLoader, whose workers are processes: for transforms that are slow in Python. Does not track the position."""

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

    Worker w of n makes steps w, w + n, …, and the DataLoader takes one from each in turn: so they come in the order of `Loader`, which has the same
    arguments, and with the same random numbers. Each worker holds blocks of its own. Who uses them counts them, as what was loaded ahead
    is not used: `batches = batches.after()` after each step, and `batches.state()` goes to the checkpoint.

    Raises:
        ValueError: there is no such process, or the order does not fit the source.
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
