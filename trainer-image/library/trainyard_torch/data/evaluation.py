"""A data set gone through once, by all processes together: for validation and tests. Knows nothing of the training, and changes nothing of it."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate

from trainyard_torch.data.batches import MicroBatch
from trainyard_torch.data.order import Order
from trainyard_torch.data.passes import Turn, length, turns
from trainyard_torch.data.recipe import Recipe, Transform, moved
from trainyard_torch.data.sources import BlockSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from trainyard_torch.data.batches import Member
    from trainyard_torch.data.sources import Source


class Counted(NamedTuple):
    """A batch that is ready for the model.

    Attributes:
        batch: what `collate` made of its samples; by default tensors with the samples as their first dimension.
        counted: how many of its samples count: all of them, or 0 where the process takes part for the others' sake alone.
    """

    batch: Any
    counted: int


class Evaluation:
    """Each sample of a source exactly once, over all processes: `for batch, count in evaluation`. Each time it is gone through is the same.

    All processes have the same number of batches, and have to go through all of them. What they found is put together by torch's own
    `all_reduce`, over the data dimension of the mesh: sums of what was found, and of the second number, how many samples count.

    Args:
        source: a list, a torch data set with numbers for keys, or one of `tokens.token_file` and `records.Records`. It stays open.
        batch: samples that a process puts through the model at once, from 1 on; the last batch may have fewer.
        member: which of the processes that share the samples this is: `training.member`.
        transform: `transform(sample, rng)` makes another sample of one, with a numpy generator that depends on (seed, sample) alone.
        seed: of those generators.
        collate: makes a batch of a list of samples; by default torch's.
        ahead: batches that are loaded beside the one in use, from 0 on.
        workers: threads that load them; 0: they are loaded when asked for.
        device: where tensors go; None: they stay where `collate` made them.

    Raises:
        ValueError: a number is out of its range, there is no such process, or the source has no samples or too little memory.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        source: Source,
        batch: int,
        member: Member,
        *,
        transform: Transform | None = None,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
        ahead: int = 2,
        workers: int = 2,
        device: torch.device | str | None = None,
    ) -> None:
        for name, value, least in (("batch", batch, 1), ("ahead", ahead, 0), ("workers", workers, 0)):
            if value < least:
                raise ValueError(f"{name} must be from {least} on, and is {value}")
        if not 0 <= member.rank < member.world:
            raise ValueError(f"rank must be from 0 to {member.world - 1}, and is {member.rank}")
        if not len(source):
            raise ValueError("the source has no samples: there is nothing to evaluate")
        if isinstance(source, BlockSource):
            source.check(Order(len(source), shuffled=False), (1 + ahead) * batch)
        self._recipe, self._seed = Recipe(source, transform, collate), seed
        self._size, self._batch, self._member = len(source), batch, member
        self._ahead, self._workers, self._device = ahead, workers, device

    def __len__(self) -> int:
        """How many batches each process has."""
        return length(self._size, self._batch, self._member.world)

    def __iter__(self) -> Iterator[Counted]:
        """All batches of this process.

        Raises:
            Exception: what the source, `transform` or `collate` raised, with a note of the samples.
        """
        coming = turns(self._size, self._batch, self._member)
        for batch, count in self._threaded(coming) if self._workers else map(self._load, coming):
            yield Counted(batch if self._device is None else moved(batch, torch.device(self._device)), count)

    def _threaded(self, coming: Iterator[Turn]) -> Iterator[Counted]:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="trainyard-evaluate") as pool:
            loading = deque(self._begun(pool, turn) for turn in islice(coming, self._ahead))
            try:
                for turn in coming:
                    loading.append(self._begun(pool, turn))
                    yield loading.popleft().result()
                while loading:
                    yield loading.popleft().result()
            finally:
                # Who goes no further needs none of what has not begun.
                pool.shutdown(wait=False, cancel_futures=True)

    def _begun(self, pool: ThreadPoolExecutor, turn: Turn) -> Future[Counted]:
        if isinstance(self._recipe.source, BlockSource):
            self._recipe.source.prepare(turn.samples)
        return pool.submit(self._load, turn)

    def _load(self, turn: Turn) -> Counted:
        samples, epochs = turn.samples, np.zeros_like(turn.samples)
        return Counted(self._recipe.part(MicroBatch(samples, epochs, 1.0, last=True), self._seed).batch, turn.counted)
