"""Load the steps of a training in threads ahead of their use, and track the position in the data.

Threads need no fork next to CUDA and NCCL and no pickling, and they share cached blocks. Reading, most decoders and copies release the GIL.
Use `StepDataset` for a transform that is slow in Python itself and holds the GIL.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate

from trainyard_torch.data.batch_builder import BatchBuilder, LoadedMicroBatch, Transform, moved, pinned
from trainyard_torch.data.blocks import ClosedError
from trainyard_torch.data.sources import BlockSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from trainyard_torch.data.batches import Batches, DataShard
    from trainyard_torch.data.sources import Source

MOMENT = 0.05
"""Seconds."""
MAX_GATHERED_STEPS = 16
"""So many small steps in memory are loaded at a time, while the loader's code is in the processor's caches. A step of the model evicts it."""


class Loader:
    """Iterates over the steps of a training without end: `for step in loader`, or `next(loader)`.

    Each step is a list of `LoadedMicroBatch`. A step counts as used once it was returned; prefetched steps do not count. So training continues
    with the next unseen sample, at any number of processes, from a `state_dict` that was taken between two steps.

    Args:
        source: a list, a map-style dataset of torch, or the result of `token_dataset` or `RecordDataset`.
        batches: the samples of each step, and the position to start from.
        data_shard: the shard of this process.
        transform: `transform(sample, rng)` returns a changed sample. The numpy generator depends on (seed, epoch, sample) alone. Several
            threads call it.
        collate_fn: makes a batch of a list of samples; by default torch's.
        prefetch: the number of steps that are loaded ahead, from 0 on.
        num_workers: the number of loading threads. 0: steps are loaded on request, and `prefetch` has no effect. Small steps of a
            `TensorDataset` (no transform, torch's collate_fn, at most 1 MiB) are never loaded in threads, since the change of threads takes
            longer: up to 16 of them, and 1 MiB, are loaded at a time.
        device: the device for tensors. None: they stay where `collate_fn` made them. Copies to a GPU use pinned memory.

    Attributes:
        waited: the seconds that the last step was waited for.

    Raises:
        ValueError: a number or the rank is out of range, or the order does not fit the source.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        source: Source,
        batches: Batches,
        data_shard: DataShard,
        *,
        transform: Transform | None = None,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        prefetch: int = 2,
        num_workers: int = 2,
        device: torch.device | str | None = None,
    ) -> None:
        for name, value in (("prefetch", prefetch), ("num_workers", num_workers)):
            if value < 0:
                raise ValueError(f"{name} must be from 0 on, got {value}")
        self._builder = BatchBuilder(source, transform, collate_fn)
        self._builder.check(batches, prefetch if num_workers else 0)
        # Fail here for an invalid shard, and not in a thread.
        batches.step(data_shard)
        self._batches, self._data_shard = batches, data_shard
        self._prefetch, self._num_workers = prefetch, num_workers
        share = -(-batches.batch_size // data_shard.world_size)
        quick = self._builder.quick_steps(share)
        self._in_threads = num_workers > 0 and not quick
        self._at_once = min(MAX_GATHERED_STEPS, quick) if quick and num_workers and prefetch else 1
        self._device = None if device is None else torch.device(device)
        # gpu-only: the current device
        if self._device is not None and self._device.type == "cuda" and self._device.index is None:
            # Each thread has its own current device.
            self._device = torch.device("cuda", torch.cuda.current_device())
        tensors = self._builder.tensors
        self._moves = self._device is not None and not (
            tensors and all(each.device == self._device for each in tensors)
        )
        self._pool: ThreadPoolExecutor | None = None
        # The steps from `_batches` on, in order: loaded in this thread, or by others.
        self._gathered: deque[list[LoadedMicroBatch]] = deque()
        self._coming: deque[Future[list[LoadedMicroBatch]]] = deque()
        self.waited = 0.0

    @property
    def batches(self) -> Batches:
        """Return the position in the data: the next step of these batches comes next."""
        return self._batches

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[LoadedMicroBatch]:
        """Return the next step.

        Raises:
            ClosedError: another thread called `close`.
            Exception: the error of the source, `transform` or `collate_fn`, with its traceback and a note that names the samples. The step is
                not used: the next call loads it again.
        """
        begin = time.perf_counter()
        step = self._from_threads() if self._in_threads else self._from_memory()
        if self._moves:
            step = [part._replace(batch=moved(part.batch, self._device)) for part in step]
        # Both together, once nothing can fail any more: otherwise the queue would be a step ahead of the position.
        # `close` in another thread may have emptied it.
        if waiting := self._coming if self._in_threads else self._gathered:
            waiting.popleft()
        self._batches = self._batches.after()
        self.waited = time.perf_counter() - begin
        return step

    def state_dict(self) -> dict[str, int]:
        """Return the state for a checkpoint: the position after all steps that were returned."""
        return self._batches.state()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue with the first step that another loader did not return, at any number of processes and any batch size.

        Raises:
            ValueError: the other loader had other data or another order.
        """
        there = self._batches.at(state)
        self.close()
        self._batches = there

    def close(self) -> None:
        """Stop all threads, and drop prefetched steps and the dataset's blocks. The next call loads its step again.

        A thread finishes its current work, a transform or one read from a store, but does not retry.
        """
        pool, self._pool = self._pool, None
        coming, self._coming, self._gathered = self._coming, deque(), deque()
        loading = [future for future in coming if not future.cancel()]
        source = self._builder.source
        # Another source belongs to the caller, who closes it.
        if isinstance(source, BlockSource):
            source.close()
            # A thread that was about to request a block may have reopened the dataset.
            while wait(loading, timeout=MOMENT).not_done:
                source.close()
            source.close()
        if pool is not None:
            pool.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _from_memory(self) -> list[LoadedMicroBatch]:
        """Return the next step, loaded in this thread."""
        gathered = self._gathered
        if not gathered:
            batches = self._batches
            for _ in range(self._at_once):
                gathered.append(self._load(batches))
                batches = batches.after()
        return gathered[0]

    def _from_threads(self) -> list[LoadedMicroBatch]:
        """Return the next step, loaded in another thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_workers, thread_name_prefix="trainyard-load")
        # `close` in another thread replaces this queue.
        coming = self._coming
        while len(coming) <= self._prefetch:
            batches = self._batches.after(len(coming))
            self._builder.prepare(batches, self._data_shard)
            coming.append(self._pool.submit(self._load, batches))
        try:
            step = coming[0].result()
        except CancelledError:
            raise ClosedError("the loader was closed while a step was waited for") from None
        except BaseException:
            # Later steps may have failed too: a caller that continues retries all of them.
            self.close()
            raise
        return step

    def _load(self, batches: Batches) -> list[LoadedMicroBatch]:
        step = self._builder.step(batches, self._data_shard)
        # gpu-only: pinning in a thread
        if self._device is not None and self._device.type == "cuda":
            # Without it, memory is pinned through GPU 0, where each process would create a context.
            with torch.cuda.device(self._device):
                step = [part._replace(batch=pinned(part.batch)) for part in step]
        return step
