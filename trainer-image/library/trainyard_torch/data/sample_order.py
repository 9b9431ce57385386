"""Order samples by a function of (seed, epoch, position) alone, at any number of processes. Pure.

The permutation of 0 … size - 1 is computed, not stored. So a resumed run, or another number of processes, finds its
position at once, also among a billion samples. It is a Feistel network over the next power of four with cycle walking
(J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Its arithmetic is defined here, so that no
release of numpy or torch can change the order in the middle of a training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST = 2**62
ROUNDS = 8
WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIXING, LAST_SHIFT = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)), 31


@dataclass(frozen=True)
class SampleOrder:
    """The order of `size` samples in every epoch.

    Attributes:
        size: the number of samples, at least 1.
        seed: the seed, from 0 on. Another seed gives another order.
        shuffled: False: each epoch goes from 0 to size - 1.
        block: the number of adjacent samples in storage that stay together, so that one read fetches them all. 1: no blocks.
        window: the number of blocks that are shuffled together. The samples of a block are seen within window x block positions.

    Raises:
        ValueError: a number is out of range.
    """

    size: int
    seed: int = 0
    shuffled: bool = True
    block: int = 1
    window: int = 16

    def __post_init__(self) -> None:
        for name, least, most in (
            ("size", 1, LARGEST),
            ("seed", 0, WORD),
            ("block", 1, LARGEST),
            ("window", 1, LARGEST),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} must be from {least} to {most}, got {value}")

    @property
    def identity(self) -> dict[str, int]:
        """The values that identify the order and the size of the data: two orders with equal values are equal. Values without effect are 0."""
        mixed_blocks = self.shuffled and self.block > 1
        return {
            "size": self.size,
            "seed": self.seed if self.shuffled else 0,
            "shuffled": int(self.shuffled),
            "block": self.block if mixed_blocks else 0,
            "window": self.window if mixed_blocks else 0,
        }

    def samples(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at these positions of an epoch: the same shape, each number from 0 to size - 1.

        Raises:
            ValueError: a position is outside of the epoch, or the epoch is negative.
        """
        positions = np.asarray(positions, dtype=np.int64)
        if epoch < 0:
            raise ValueError(f"epoch must be from 0 on, got {epoch}")
        if positions.size and not (positions.min() >= 0 and positions.max() < self.size):
            raise ValueError(f"positions must be from 0 to {self.size - 1}, got {positions.min()} to {positions.max()}")
        if not self.shuffled:
            return positions
        if self.block == 1:
            return permuted(positions, self.size, mixed(self.seed, epoch))
        return self._in_blocks(mixed(self.seed, epoch), positions)

    def _in_blocks(self, key: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return blocks in a random order, with the samples of each window of blocks in a random order.

        A last block that is shorter than the others stays last, so that all blocks before it form a grid.
        """
        span = self.window * self.block
        found = np.empty_like(positions)
        whole = self.size // self.block
        for at in np.unique(positions // span):
            here = positions // span == at
            length = min(span, self.size - int(at) * span)
            inside = permuted(positions[here] - at * span, length, mixed(key, int(at) + 1))
            slot = at * self.window + inside // self.block
            blocks = slot.copy()
            movable = slot < whole
            blocks[movable] = permuted(slot[movable], whole, key) if whole else slot[movable]
            found[here] = blocks * self.block + inside % self.block
        return found


def permuted(positions: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """Apply a random permutation of 0 … size - 1 to these positions. The key, an unsigned 64-bit number, selects the permutation."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [mixed(key, number) for number in range(ROUNDS)]
    values = _network(positions.astype(np.uint64), half, keys)
    outside = values >= size
    while outside.any():
        values[outside] = _network(values[outside], half, keys)
        outside = values >= size
    return values.astype(np.int64)


def mixed(key: int, number: int) -> int:
    """Derive a key from a key and a number: distinct inputs give independent keys."""
    # As `_scrambled`, in plain Python: numpy takes 20 microseconds for one number, and a step needs a dozen.
    value = (key ^ ((number + 1) * GOLDEN)) & WORD
    for shift, factor in MIXING:
        value = ((value ^ (value >> shift)) * factor) & WORD
    return value ^ (value >> LAST_SHIFT)


def _network(values: NDArray[np.uint64], half: int, keys: list[int]) -> NDArray[np.uint64]:
    """Return a permutation of the numbers of 2 x half bits."""
    width, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> width, values & mask
    for key in keys:
        left, right = right, left ^ (_scrambled(right ^ np.uint64(key)) & mask)
    return (left << width) | right


def _scrambled(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash in which each bit depends on each bit of the number: the finalizer of splitmix64 (G. Steele et al., 2014)."""
    for shift, factor in MIXING:
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(LAST_SHIFT))
