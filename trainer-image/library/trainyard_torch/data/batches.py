"""Assign the samples of each step to processes, with their weights. Pure.

The stream of samples is one epoch after the other. A step takes the next `batch_size` samples, at any number of processes. So no sample is
skipped or repeated in an epoch, and the gradient of a step is the same mean at any world size. The only state is the number of samples taken.
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

LOOKUP_SAMPLES = 8192
"""The number of samples of a process that one lookup in the order returns. A lookup costs a millisecond or two, and little more for each sample."""


class DataShard(NamedTuple):
    """One of the processes that share the samples. Ranks with the same data-parallel rank get the same samples."""

    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The samples that a process passes through the model at once.

    Attributes:
        samples: their numbers in the dataset, shape (n,), n from 1 to `micro_batch_size`.
        epochs: the epoch of each, shape (n,). A step may span two epochs.
        weight: the factor for the mean loss of these samples. With it, the mean of gradients over all processes, as DDP and FSDP compute it,
            is the mean over all samples of the step. 0: the process has no samples and takes part only in the collectives.
        last: whether gradients are synchronized after it.
    """

    samples: NDArray[np.int64]
    epochs: NDArray[np.int64]
    weight: float
    last: bool


@dataclass(frozen=True)
class Batches:
    """The samples of each step.

    Attributes:
        order: the order of the samples in each epoch.
        batch_size: the samples of a step over all processes.
        micro_batch_size: the samples that a process passes through the model at once. Larger shares are accumulated.
        cursor: the number of samples taken so far, in all epochs.

    Raises:
        ValueError: a number is out of range.
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
        """The epochs taken so far: 1.5 in the middle of the second epoch."""
        return self.cursor / self.order.size

    def after(self, steps: int = 1) -> Batches:
        """Return the batches that start `steps` steps later."""
        return replace(self, cursor=self.cursor + steps * self.batch_size)

    def step(self, data_shard: DataShard) -> list[MicroBatch]:
        """Return the micro-batches of a process in the next step: at least one, and equally many on all processes.

        Raises:
            ValueError: the rank is out of range, or there are more processes than samples in a step.
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
        """Yield the micro-batches of a process step by step, without end."""
        here = self
        while True:
            yield here.step(data_shard)
            here = here.after()

    def state(self) -> dict[str, int]:
        """Return the state for a checkpoint."""
        return {"cursor": self.cursor, **self.order.identity}

    def at(self, state: Mapping[str, int]) -> Batches:
        """Return the batches that continue another run.

        Raises:
            ValueError: that run used other data or another order, so samples could repeat; or the state lacks keys.
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
        """Return the number of samples of a process in a step. If the world size does not divide the batch, the first processes get one more."""
        return self.batch_size // world_size + (rank < self.batch_size % world_size)

    def _begin(self, rank: int, world_size: int) -> int:
        return self.cursor + rank * (self.batch_size // world_size) + min(rank, self.batch_size % world_size)

    def _taken(self, begin: int, share: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the samples from a position on, and the epoch of each."""
        # Not beyond the next epoch, since a lookup takes time for each epoch.
        steps = max(1, min(LOOKUP_SAMPLES // share, self.order.size // self.batch_size))
        at = self.cursor // self.batch_size % steps
        samples, epochs = _ordered(self.order, begin - at * self.batch_size, self.batch_size, share, steps)
        return samples[at], epochs[at]

    def _part(
        self, samples: NDArray[np.int64], epochs: NDArray[np.int64], part: int, parts: int, world_size: int
    ) -> MicroBatch:
        share = len(samples)
        low, high = share * part // parts, share * (part + 1) // parts
        # All processes must run equally many collectives: a process without samples repeats one at weight 0.
        mine = slice(low, max(high, low + 1))
        # Copies, so that the caller may change them.
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
    """Return the samples of a process in several steps and their epochs, each of shape (steps, share). Cached, since it depends on numbers only.

    A lookup of a few samples takes as long as one of thousands.

    Args:
        order: the order of the samples.
        begin: the position of the first sample in the first step.
        stride: the distance between two steps.
        share: the samples of the process in a step.
        steps: the number of steps.
    """
    taken = begin + stride * np.arange(steps, dtype=np.int64)[:, None] + np.arange(share, dtype=np.int64)
    epochs, positions = np.divmod(taken, order.size)
    samples = np.empty_like(positions)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        samples[here] = order.samples(int(epoch), positions[here])
    return samples, epochs
