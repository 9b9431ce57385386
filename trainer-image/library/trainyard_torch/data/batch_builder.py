"""Build the batches of a model from sample numbers: read, transform, collate. No threads, no state.

Random transforms depend on (seed, epoch, sample) alone. So a sample looks the same at any number of processes and after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from trainyard_torch.data.sample_order import mixed
from trainyard_torch.data.sources import BlockSource, found

if TYPE_CHECKING:
    from trainyard_torch.data.batches import Batches, DataShard, MicroBatch
    from trainyard_torch.data.sources import Source

Transform = Callable[[Any, np.random.Generator], Any]


MAX_GATHERED_BYTES = 2**20
"""Larger steps of tensors in memory are loaded in threads: copying a megabyte takes about as long as the change of threads."""


class LoadedMicroBatch(NamedTuple):
    """A micro-batch that is ready for the model.

    Attributes:
        batch: the result of `collate_fn`; by default tensors whose first dimension is the sample.
        weight: the factor for the mean loss of this micro-batch (`MicroBatch.weight`).
        last: whether gradients are synchronized after it.
    """

    batch: Any
    weight: float
    last: bool


@dataclass(frozen=True)
class BatchBuilder:
    """Builds batches from samples.

    Attributes:
        source: the samples.
        transform: returns a changed sample, with a random generator of its own. None: samples stay as they are.
        collate_fn: makes a batch of a list of samples.
    """

    source: Source
    transform: Transform | None = None
    collate_fn: Callable[[list[Any]], Any] = default_collate

    @cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors in memory whose rows are the samples: a micro-batch is one lookup in each. Empty if samples are built one by one."""
        # A subclass may return samples other than the rows of its tensors.
        plain = type(self.source) is TensorDataset and self.transform is None and self.collate_fn is default_collate
        tensors: tuple[torch.Tensor, ...] = getattr(self.source, "tensors", ()) if plain else ()
        return tensors if all(tensor.layout is torch.strided for tensor in tensors) else ()

    def quick_steps(self, samples: int) -> int:
        """Return how many steps of `samples` samples are loaded faster than one is handed to a thread; 0 if a single one is not."""
        size = sum(tensor[:1].nbytes for tensor in self.tensors) * samples
        return MAX_GATHERED_BYTES // size if size else 0

    def step(self, batches: Batches, data_shard: DataShard) -> list[LoadedMicroBatch]:
        """Return the micro-batches of this process in the next step.

        Raises:
            Exception: the error of the source, `transform` or `collate_fn`, with a note that names the samples.
        """
        return [self.part(micro, batches.order.seed) for micro in batches.step(data_shard)]

    def prepare(self, batches: Batches, data_shard: DataShard) -> None:
        """Start to prefetch what the next step of these batches needs, if the dataset reads from a remote store."""
        if isinstance(self.source, BlockSource):
            self.source.prepare(np.concatenate([micro.samples for micro in batches.step(data_shard)]))

    def check(self, batches: Batches, prefetch: int) -> None:
        """Check that dataset and order fit together, with `prefetch` steps loaded ahead.

        Raises:
            ValueError: they do not; the message says what to change.
        """
        size = batches.order.size
        if len(self.source) != size:
            raise ValueError(
                f"the order has size {size}, and the source has {len(self.source)} samples: make it SampleOrder({len(self.source)})"
            )
        if isinstance(self.source, BlockSource):
            self.source.check(batches.order, (prefetch + 1) * batches.batch_size)

    def part(self, micro: MicroBatch, seed: int) -> LoadedMicroBatch:
        """Return the loaded micro-batch of a training with this seed.

        Raises:
            Exception: as `step`.
        """
        if tensors := self.tensors:
            rows = torch.from_numpy(micro.samples)
            return LoadedMicroBatch([tensor.index_select(0, rows) for tensor in tensors], micro.weight, micro.last)
        numbers, epochs = micro.samples.tolist(), micro.epochs.tolist()
        try:
            samples = found(self.source, numbers)
            if self.transform is not None:
                made = zip(samples, epochs, numbers, strict=True)
                samples = [self.transform(sample, randomness(seed, epoch, number)) for sample, epoch, number in made]
            return LoadedMicroBatch(self.collate_fn(samples), micro.weight, micro.last)
        except Exception as error:
            error.add_note(f"while samples {', '.join(map(str, numbers))} of epoch {epochs[0]} were loaded")
            raise


def randomness(seed: int, epoch: int, sample: int) -> np.random.Generator:
    """Return the random generator of a sample in an epoch: the same on any process, and independent of other samples.

    It uses Philox, whose only state is a key (J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).
    For a generator of torch: `torch.Generator().manual_seed(int(rng.integers(2**63)))`.
    """
    return np.random.Generator(np.random.Philox(key=[mixed(int(seed), int(epoch)), int(sample)]))


def pinned(batch: Any) -> Any:
    """Return the batch with its tensors in pinned memory."""
    # gpu-only: pinned memory
    return _each(batch, lambda tensor: tensor.pin_memory())


def moved(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on a device. Copies from pinned memory are asynchronous; later work on the device waits for them."""
    return _each(batch, lambda tensor: tensor.to(device, non_blocking=True))


def _each(value: Any, act: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return act(value)
    if isinstance(value, Mapping):
        return {key: _each(each, act) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(each, act) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(_each(each, act) for each in value)
    return value
