from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from trainyard_torch.data import Batches, DataShard, SampleOrder

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 24), st.integers(1, 6), st.integers(0, 200))


def made(numbers: tuple[int, int, int, int]) -> Batches:
    size, batch, micro, cursor = numbers
    return Batches(SampleOrder(size, 5), batch, micro, cursor)


def seen(batches: Batches, world_size: int) -> list[tuple[int, int]]:
    """Epoch and sample of everything that counts in the next step."""
    parts = [part for rank in range(world_size) for part in batches.step(DataShard(rank, world_size)) if part.weight]
    return [(int(e), int(s)) for part in parts for e, s in zip(part.epochs, part.samples, strict=True)]


@given(SIZES, st.integers(1, 24))
@settings(deadline=None)
def test_step_has_same_samples_at_any_size(numbers: tuple[int, int, int, int], world_size: int) -> None:
    batches = made(numbers)
    world_size = min(world_size, batches.batch_size)
    assert seen(batches, world_size) == seen(batches, 1)
    assert len(seen(batches, 1)) == batches.batch_size


@given(SIZES, st.lists(st.integers(1, 24), min_size=1, max_size=12))
@settings(deadline=None)
def test_no_sample_is_skipped_or_repeated(numbers: tuple[int, int, int, int], worlds: list[int]) -> None:
    batches = made((*numbers[:3], 0))
    all_seen: list[tuple[int, int]] = []
    for world_size in worlds:
        all_seen += seen(batches, min(world_size, batches.batch_size))
        batches = batches.after()
    size = batches.order.size
    wanted = [(p // size, int(batches.order.samples(p // size, np.array([p % size]))[0])) for p in range(len(all_seen))]
    assert all_seen == wanted


@given(SIZES, st.integers(1, 24))
@settings(deadline=None)
def test_mean_of_processes_equals_mean_of_samples(numbers: tuple[int, int, int, int], world_size: int) -> None:
    """With the number of a sample for its gradient."""
    batches = made(numbers)
    world_size = min(world_size, batches.batch_size)
    ranks = [batches.step(DataShard(rank, world_size)) for rank in range(world_size)]
    mean = sum(part.weight * part.samples.mean() for parts in ranks for part in parts) / world_size
    assert mean == pytest.approx(np.mean([sample for _, sample in seen(batches, 1)]))
    assert len({len(parts) for parts in ranks}) == 1, "each takes part in the same collectives"
    assert all(1 <= len(part.samples) <= batches.micro_batch_size for parts in ranks for part in parts)
    assert [[part.last for part in parts] for parts in ranks] == [[False] * (len(ranks[0]) - 1) + [True]] * world_size


def test_process_without_samples_has_no_weight() -> None:
    first, second = (Batches(SampleOrder(10), 3, 1).step(DataShard(rank, 2)) for rank in range(2))
    assert [part.weight for part in first] == [2 / 3, 2 / 3]
    assert sorted(part.weight for part in second) == [0, 2 / 3]


def test_a_run_goes_on_where_it_stood() -> None:
    batches = Batches(SampleOrder(10, 1), 4, 2)
    there = batches.after(3)
    again = Batches(SampleOrder(10, 1), 8, 1).at(there.state())
    assert (again.cursor, again.batch_size, again.epoch) == (12, 8, 1.2)


def test_settings_that_keep_the_order_may_change() -> None:
    assert Batches(SampleOrder(10, window=3), 4, 2).at(Batches(SampleOrder(10), 4, 2, 8).state()).cursor == 8
    assert (
        Batches(SampleOrder(10, 7, shuffled=False, block=5), 4, 2)
        .at(Batches(SampleOrder(10, 1, shuffled=False), 4, 2, 8).state())
        .cursor
        == 8
    )


def test_steps_follow_each_other() -> None:
    batches = Batches(SampleOrder(10, 1), 4, 4)
    steps = batches.steps(DataShard(0, 1))
    for at in (batches, batches.after(), batches.after(2)):
        assert next(steps)[0].samples.tolist() == at.step(DataShard(0, 1))[0].samples.tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Batches(SampleOrder(9), 0, 1), "batch_size must be from 1"),
        (lambda: Batches(SampleOrder(9), 1, 0), "micro_batch_size must be from 1"),
        (lambda: Batches(SampleOrder(9), 1, 1, -1), "cursor must be from 0"),
        (lambda: Batches(SampleOrder(9), 4, 1).step(DataShard(4, 4)), "rank must be from 0 to 3, got 4"),
        (lambda: Batches(SampleOrder(9), 4, 1).step(DataShard(0, 5)), "5 processes cannot share a batch of 4 samples"),
        (
            lambda: Batches(SampleOrder(9), 4, 1).at(Batches(SampleOrder(8), 4, 1).state()),
            "size 8 of the data, and this run has 9",
        ),
        (
            lambda: Batches(SampleOrder(9), 4, 1).at(Batches(SampleOrder(9, 2), 4, 1).state()),
            "seed 2 of the data, and this run has 0",
        ),
        (
            lambda: Batches(SampleOrder(9, block=2), 4, 1).at(Batches(SampleOrder(9, block=3), 4, 1).state()),
            "block 3 of the data, and this run has 2",
        ),
        (
            lambda: Batches(SampleOrder(9, shuffled=False), 4, 1).at(Batches(SampleOrder(9), 4, 1).state()),
            "shuffled 1 of the data, and this run has 0",
        ),
        (lambda: Batches(SampleOrder(9), 4, 1).at({"cursor": 1, "size": 9}), "lacks block, seed, shuffled, window"),
    ],
)
def test_what_cannot_be_shared(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
