"""Which samples each process sees in each step, and how much each counts. Pure.

The stream of samples is one epoch after the other; a step takes the next `batch` of them, whatever the number of processes. So no sample is
skipped or seen twice in an epoch, a step's gradient is the same mean over the same samples at any world size, and all there is to
remember is how many samples were taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from trainyard_torch.data.sample_order import SampleOrder

LOOKUP_SAMPLES = 1024
"""Samples of a process that are looked up in the order at a time."""


class DataShard(NamedTuple):
    """One of the processes that share the samples: those of the same data-parallel rank see the same ones."""

    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one process puts through the model at once.

    Attributes:
        samples: their numbers in the data set, shape (n,), n from 1 to `micro`.
        epochs: the epoch of each, shape (n,): a step may span two epochs.
        weight: what the mean loss over these samples is to be multiplied with, so that the mean of gradients over all processes, as DDP and
            FSDP form it, is the mean over all samples of the step. 0: the process has nothing to do, and takes part for the others' sake.
        last: whether gradients are to be exchanged after it.
    """

    samples: NDArray[np.int64]
    epochs: NDArray[np.int64]
    weight: float
    last: bool


@dataclass(frozen=True)
class Batches:
    """The samples of each step.

    Attributes:
        order: that of the samples in each epoch.
        batch_size: samples of a step, all processes together.
        micro_batch_size: samples that a process puts through the model at once; a larger share is accumulated.
        cursor: samples that were taken so far, in all epochs.

    Raises:
        ValueError: a number is out of its range.
    """

    order: SampleOrder
    batch_size: int
    micro_batch_size: int
    cursor: int = 0

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("micro_batch_size", 1), ("cursor", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be from {least} on, got {getattr(self, name)}")

    @property
    def epoch(self) -> float:
        """How many epochs were taken so far: 1.5 in the middle of the second."""
        return self.cursor / self.order.size

    def after(self, steps: int = 1) -> Batches:
        """Return the batches that start `steps` steps later."""
        return replace(self, cursor=self.cursor + steps * self.batch_size)

    def step(self, data_shard: DataShard) -> list[MicroBatch]:
        """What this process does in the next step: the same number of micro-batches on all, one at least.

        Raises:
            ValueError: there is no such process, or there are more of them than samples in a step.
        """
        rank, world_size = data_shard
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be from 0 to {world_size - 1}, got {rank}")
        if world_size > self.batch_size:
            raise ValueError(
                f"{world_size} processes cannot share a batch of {self.batch_size} samples: make it larger, or use fewer"
            )
        parts = -(-self._share(0, world_size) // self.micro_batch_size)
        samples, epochs = self._taken(self._begin(rank, world_size), self._share(rank, world_size))
        return [self._part(samples, epochs, part, parts, world_size) for part in range(parts)]

    def steps(self, data_shard: DataShard) -> Iterator[list[MicroBatch]]:
        """What this process does from here on, step by step, without end."""
        here = self
        while True:
            yield here.step(data_shard)
            here = here.after()

    def state(self) -> dict[str, int]:
        """What a checkpoint has to hold."""
        return {"cursor": self.cursor, **self.order.identity}

    def at(self, state: Mapping[str, int]) -> Batches:
        """Return the batches that continue another run.

        Raises:
            ValueError: that run used other data or another order, so that samples could repeat; or the state has missing keys.
        """
        if missing := {"cursor", *self.order.identity} - set(state):
            raise ValueError(
                f"the state of the data lacks {', '.join(sorted(missing))}: it was not made by Batches.state"
            )
        for name, ours in self.order.identity.items():
            if state[name] != ours:
                raise ValueError(
                    f"the checkpoint was made with {name} {state[name]} of the data, and this run has {ours}: make them the "
                    "same, or restart the data with cursor 0"
                )
        return replace(self, cursor=state["cursor"])

    def _share(self, rank: int, world_size: int) -> int:
        """How many samples of a step are this process's: where the world does not divide them, the first have one more."""
        return self.batch_size // world_size + (rank < self.batch_size % world_size)

    def _begin(self, rank: int, world_size: int) -> int:
        return self.cursor + rank * (self.batch_size // world_size) + min(rank, self.batch_size % world_size)

    def _taken(self, begin: int, share: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The samples from this position on, and the epoch of each."""
        # Not beyond the next epoch: each lookup takes its own time.
        steps = max(1, min(LOOKUP_SAMPLES // share, self.order.size // self.batch_size))
        at = self.cursor // self.batch_size % steps
        samples, epochs = _ordered(self.order, begin - at * self.batch_size, self.batch_size, share, steps)
        return samples[at], epochs[at]

    def _part(
        self, samples: NDArray[np.int64], epochs: NDArray[np.int64], part: int, parts: int, world_size: int
    ) -> MicroBatch:
        share = len(samples)
        low, high = share * part // parts, share * (part + 1) // parts
        # All processes run the same number of collectives: one without samples repeats a sample at weight 0.
        mine = slice(low, max(high, low + 1))
        # Copies: they are the caller's to change.
        return MicroBatch(
            samples[mine].copy(),
            epochs[mine].copy(),
            (high - low) * world_size / self.batch_size,
            last=part == parts - 1,
        )


@lru_cache(maxsize=16)
def _ordered(
    order: SampleOrder, begin: int, stride: int, share: int, steps: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a process's samples of several steps and their epochs, each of shape (steps, share). Cached, since it depends on numbers only.

    To find a few samples in the order takes as long as to find a thousand.

    Args:
        order: that of the samples.
        begin: the position of its first sample in the first step.
        stride: from one step to the next.
        share: samples that it has in a step.
        steps: how many.
    """
    taken = begin + stride * np.arange(steps, dtype=np.int64)[:, None] + np.arange(share, dtype=np.int64)
    epochs, positions = np.divmod(taken, order.size)
    samples = np.empty_like(positions)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        samples[here] = order.samples(int(epoch), positions[here])
    return samples, epochs
