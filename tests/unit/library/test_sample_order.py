from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from trainyard_torch.data.sample_order import SampleOrder, mixed, permuted


def epoch(order: SampleOrder, number: int = 0) -> list[int]:
    return [int(sample) for sample in order.samples(number, np.arange(order.size))]


@given(
    size=st.integers(1, 700),
    seed=st.integers(0, 2**64 - 1),
    block=st.sampled_from([1, 2, 7, 64, 1000]),
    window=st.integers(1, 5),
    number=st.integers(0, 10**9),
)
@settings(deadline=None)
def test_each_sample_comes_once_an_epoch(size: int, seed: int, block: int, window: int, number: int) -> None:
    order = SampleOrder(size, seed, block=block, window=window)
    assert sorted(epoch(order, number)) == list(range(size))


@given(size=st.integers(1, 2**62), data=st.data(), block=st.sampled_from([1, 4096]))
@settings(deadline=None)
def test_few_positions_are_found_at_any_size(size: int, data: st.DataObject, block: int) -> None:
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    found = SampleOrder(size, 3, block=block).samples(5, np.array(positions))
    assert len(set(found.tolist())) == len(positions)
    assert found.min() >= 0
    assert found.max() < size


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(epoch(SampleOrder(50, seed), number)) for seed in range(20) for number in range(20)}
    assert len(orders) == 400


def test_every_order_is_as_likely() -> None:
    seen = Counter(tuple(permuted(np.arange(4), 4, mixed(seed, 0)).tolist()) for seed in range(12_000))
    expected = 12_000 / 24
    chi2 = sum((seen[order] - expected) ** 2 / expected for order in permutations(range(4)))
    assert chi2 < 49.7, "23 degrees of freedom: more happens once in a thousand times, and the seeds are fixed"


@pytest.mark.parametrize("size", [10, 97, 1024])
def test_every_place_is_as_likely_for_a_sample(size: int) -> None:
    rounds = 20 * size
    at = np.array([permuted(np.array([0, size - 1]), size, mixed(seed, 1)) for seed in range(rounds)])
    for column in at.T:
        counts = np.bincount(column, minlength=size)
        chi2 = ((counts - rounds / size) ** 2 / (rounds / size)).sum()
        assert abs(chi2 - (size - 1)) < 4 * (2 * (size - 1)) ** 0.5


def test_neighbours_do_not_stay_neighbours() -> None:
    order = np.array(epoch(SampleOrder(10_000, 1)))
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.04
    assert (np.abs(np.diff(order)) == 1).mean() < 0.001


def test_a_block_is_read_within_its_window() -> None:
    order = SampleOrder(1000, 7, block=10, window=4)
    first = epoch(order)[:40]
    assert len({sample // 10 for sample in first}) == 4
    assert first != sorted(first)
    assert {sample // 10 for sample in first} != {0, 1, 2, 3}


def test_the_order_is_the_same_in_every_release() -> None:
    """Who goes on with a training after an upgrade must not see samples twice."""
    assert epoch(SampleOrder(12, 42), 3) == PINNED
    assert epoch(SampleOrder(12, 42, block=3, window=2), 3) == PINNED_BLOCKS


def test_without_a_shuffle() -> None:
    assert epoch(SampleOrder(5, shuffled=False), 9) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: SampleOrder(0), "size must be from 1"),
        (lambda: SampleOrder(2**63), "size must be from 1"),
        (lambda: SampleOrder(5, -1), "seed must be from 0"),
        (lambda: SampleOrder(5, block=0), "block must be from 1"),
        (lambda: SampleOrder(5, window=0), "window must be from 1"),
        (lambda: SampleOrder(5).samples(0, np.array([5])), "positions must be from 0 to 4, got 5 to 5"),
        (lambda: SampleOrder(5).samples(0, np.array([-1])), "positions must be from 0 to 4"),
        (lambda: SampleOrder(5).samples(-1, np.array([0])), "epoch must be from 0"),
    ],
)
def test_numbers_that_make_no_sense(made: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()  # type: ignore[operator]  # a function


PINNED = [10, 4, 0, 7, 3, 5, 11, 6, 2, 9, 8, 1]
PINNED_BLOCKS = [3, 5, 6, 8, 7, 4, 2, 9, 10, 1, 11, 0]
