"""The loader: the same steps by threads, by processes and by neither; exact where it goes on; no thread and no error is lost."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader, TensorDataset, default_collate
from typing_extensions import override

from trainyard_torch.data import (
    Batches,
    DataShard,
    ReadError,
    ReadOptions,
    RecordDataset,
    RetryPolicy,
    SampleOrder,
    token_dataset,
    write_records,
)
from trainyard_torch.data.batch_builder import LoadedMicroBatch, moved, randomness
from trainyard_torch.data.blocks import ClosedError
from trainyard_torch.data.loader import Loader
from trainyard_torch.data.step_dataset import StepDataset

ALONE = DataShard(0, 1)
NUMBERS = list(range(40))


def noisy(sample: int, rng: np.random.Generator) -> tuple[int, float]:
    return sample, rng.random()


def plain(step: list[LoadedMicroBatch]) -> list[tuple[list[int], list[float], float, bool]]:
    return [(part.batch[0].tolist(), part.batch[1].tolist(), part.weight, part.last) for part in step]


def taken(steps: Any, count: int) -> list[Any]:
    return [plain(step) for step in islice(steps, count)]


@pytest.fixture
def bucket() -> Iterator[str]:
    yield "memory://bucket/data"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


@pytest.mark.parametrize(("ahead", "workers"), [(0, 0), (0, 1), (5, 3)])
def test_threads_change_nothing(ahead: int, workers: int) -> None:
    batches, data_shard = Batches(SampleOrder(40, 1), 12, 4), DataShard(1, 2)
    with Loader(NUMBERS, batches, data_shard, transform=noisy, prefetch=ahead, num_workers=workers) as loader:
        got = taken(loader, 9)
    wanted = [
        [
            (micro.samples.tolist(), [randomness(1, e, s).random() for e, s in zip(micro.epochs, micro.samples.tolist(), strict=True)],
             micro.weight, micro.last)
            for micro in batches.after(step).step(data_shard)
        ]
        for step in range(9)
    ]  # fmt: skip
    assert got == wanted
    assert [len(step) for step in got] == [2] * 9


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_own_loader_gives_the_same(workers: int) -> None:
    batches, data_shard = Batches(SampleOrder(40, 1), 12, 4), DataShard(1, 2)
    theirs = DataLoader(
        StepDataset(NUMBERS, batches.after(), data_shard, transform=noisy),
        batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None,
    )  # fmt: skip
    ours = Loader(NUMBERS, batches.after(), data_shard, transform=noisy, num_workers=0)
    assert taken(theirs, 7) == taken(ours, 7)


@given(
    batch=st.integers(4, 12),
    micro=st.integers(1, 5),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=25, database=None)
def test_no_sample_is_lost_or_repeated_when_resized(batch: int, micro: int, runs: list[tuple[int, int, int]]) -> None:
    """Of each run: processes, steps, steps ahead. Random numbers of a sample are the same too."""
    batches, state, seen = Batches(SampleOrder(40, 1, block=4, window=3), batch, micro), None, []
    for world_size, steps, ahead in runs:
        loaders = [
            Loader(NUMBERS, batches, DataShard(r, world_size), transform=noisy, prefetch=ahead)
            for r in range(world_size)
        ]
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        for _ in range(steps):
            parts = [part for loader in loaders for part in next(loader) if part.weight]
            seen += [pair for part in parts for pair in zip(*(value.tolist() for value in part.batch), strict=True)]
        states = [loader.state_dict() for loader in loaders]
        assert states == [states[0]] * world_size
        state = states[0]
        for loader in loaders:
            loader.close()
    alone = Loader(NUMBERS, batches, ALONE, transform=noisy, num_workers=0)
    wanted = [pair for step in islice(alone, len(seen) // batch) for part in step
              for pair in zip(*(value.tolist() for value in part.batch), strict=True)]  # fmt: skip
    assert seen == wanted


def test_random_numbers_depend_on_sample_and_epoch() -> None:
    made = {randomness(seed, epoch, sample).random() for seed in range(5) for epoch in range(5) for sample in range(5)}
    assert len(made) == 125
    assert randomness(7, 3, 12).integers(1000, size=4).tolist() == PINNED


def test_a_state_of_the_middle_of_a_run() -> None:
    loader = Loader(NUMBERS, Batches(SampleOrder(40, 1), 8, 8), ALONE, transform=noisy, prefetch=3)
    first = taken(loader, 2)
    state = loader.state_dict()
    then = taken(loader, 4)
    loader.load_state_dict(state)
    assert taken(loader, 4) == then
    assert loader.batches.cursor == 48
    loader.load_state_dict({**state, "cursor": 0})
    assert taken(loader, 2) == first
    with pytest.raises(ValueError, match="seed 2 of the data"):
        loader.load_state_dict({**state, "seed": 2})
    loader.close()


class Fragile(list[int]):
    broken = True

    @override
    def __getitem__(self, number: Any) -> Any:
        if self.broken and super().__getitem__(number) == 5:
            raise OSError("the disk is on fire")
        return super().__getitem__(number)


@pytest.mark.parametrize("workers", [0, 2])
def test_error_keeps_its_traceback_and_every_step(workers: int) -> None:
    source = Fragile(NUMBERS)
    loader = Loader(
        source, Batches(SampleOrder(40, shuffled=False), 4, 4), ALONE, transform=noisy, prefetch=3, num_workers=workers
    )
    first = next(loader)
    with pytest.raises(OSError, match="the disk is on fire") as caught:
        next(loader)
    assert "__getitem__" in [entry.name for entry in caught.traceback]
    assert caught.value.__notes__ == ["while samples 4, 5, 6, 7 of epoch 0 were loaded"]
    source.broken = False
    assert loader.state_dict()["cursor"] == 4
    assert [plain(first)[0][0], *(step[0][0] for step in taken(loader, 2))] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    loader.close()


def test_closing_ends_the_threads_of_the_source(bucket: str) -> None:
    write_records(bucket, [b"1"] * 40, block=10)
    before = threading.active_count()
    with Loader(
        RecordDataset(bucket), Batches(SampleOrder(40, shuffled=False), 10, 10), ALONE, collate_fn=list, num_workers=0
    ) as loader:
        next(loader)
        assert threading.active_count() > before
    assert threading.active_count() == before


def test_closing_ends_threads_that_wait_for_a_store(bucket: str) -> None:
    write_records(bucket, [b"1"] * 40, block=10)
    fsspec.filesystem("memory").pipe_file("/bucket/data/shard-000001", b"")
    before = threading.active_count()
    source = RecordDataset(bucket, read_options=ReadOptions(retry=RetryPolicy(initial_seconds=60, max_seconds=60)))
    loader = Loader(source, Batches(SampleOrder(40, shuffled=False), 10, 10), ALONE, collate_fn=list, prefetch=3)
    next(loader)
    assert threading.active_count() > before
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < 5
    assert threading.active_count() == before


def test_closing_wakes_a_waiting_reader(bucket: str) -> None:
    write_records(bucket, [b"1"] * 40, block=10)
    fsspec.filesystem("memory").pipe_file("/bucket/data/shard-000000", b"")
    source = RecordDataset(bucket, read_options=ReadOptions(retry=RetryPolicy(initial_seconds=60, max_seconds=60)))
    loader = Loader(source, Batches(SampleOrder(40, shuffled=False), 10, 10), ALONE, collate_fn=list, num_workers=1)
    closer = threading.Timer(0.2, loader.close)
    closer.start()
    with pytest.raises((ReadError, ClosedError)):
        next(loader)
    closer.join()


def test_threads_end_with_their_loader() -> None:
    before = threading.active_count()
    loader = Loader(NUMBERS, Batches(SampleOrder(40), 4, 4), ALONE)
    next(loader)
    del loader
    until = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == before


def slow(sample: int, rng: np.random.Generator) -> int:
    time.sleep(0.02)
    return sample


def test_what_is_waited_for_is_measured() -> None:
    batches = Batches(SampleOrder(40), 5, 5)
    alone = Loader(NUMBERS, batches, ALONE, transform=slow, num_workers=0)
    next(alone)
    assert alone.waited >= 0.1
    with Loader(NUMBERS, batches, ALONE, transform=slow, prefetch=2, num_workers=2) as ahead:
        next(ahead)
        time.sleep(1)
        next(ahead)
        assert ahead.waited < 0.1


def test_store_epoch_reads_each_block_once(bucket: str) -> None:
    write_records(bucket, (bytes([number % 256, number // 256]) for number in range(2000)), block=16)
    source = RecordDataset(bucket, lambda raw: raw[0] + 256 * raw[1], read_options=ReadOptions(memory=40 * 168))
    batches = Batches(SampleOrder(2000, 5, block=16, window=8), 50, 50)
    with Loader(source, batches, ALONE, prefetch=3, num_workers=3) as loader:
        seen = [number for step in islice(loader, 40) for part in step for number in part.batch.tolist()]
        assert sorted(seen) == list(range(2000))
        shards = 2000 // 16
        # What was read ahead is of the next epoch.
        assert 1 + shards <= source.reads.count <= 1 + shards + 16


def test_tokens_become_a_tensor(tmp_path: Any) -> None:
    np.arange(101, dtype=np.uint16).tofile(tmp_path / "tokens")
    with Loader(
        token_dataset(str(tmp_path / "tokens"), 10), Batches(SampleOrder(10, shuffled=False), 4, 2), ALONE
    ) as loader:
        first, second = next(loader)
    assert first.batch.dtype == torch.int64
    assert first.batch.tolist() == [list(range(11)), list(range(10, 21))]
    assert (first.weight, first.last, second.last) == (0.5, False, True)


def test_a_data_set_of_torch_is_a_source() -> None:
    source = TensorDataset(torch.arange(6.0), torch.arange(6))
    x, y = next(Loader(source, Batches(SampleOrder(6, shuffled=False), 4, 4), ALONE, num_workers=0))[0].batch
    assert (x.tolist(), y.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_rows_of_tensors_equal_collated_samples() -> None:
    """In type, shape and strides, for tensors of several dimensions."""
    tensors = torch.arange(24.0).reshape(6, 2, 2), torch.arange(6), torch.arange(12).reshape(2, 6).T
    source, batches = TensorDataset(*tensors), Batches(SampleOrder(6, seed=3), 4, 4)
    made = next(Loader(source, batches, ALONE))[0].batch
    expected = default_collate([source[row] for row in batches.step(ALONE)[0].samples.tolist()])
    assert type(made) is type(expected)
    for ours, theirs in zip(made, expected, strict=True):
        assert torch.equal(ours, theirs)
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())


class Doubled(TensorDataset):
    """Its samples are not the rows of its tensor."""

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return (super().__getitem__(index)[0] * 2,)


def test_subclass_of_tensor_dataset_gives_its_own_samples() -> None:
    loader = Loader(Doubled(torch.arange(6)), Batches(SampleOrder(6, shuffled=False), 3, 3), ALONE, num_workers=0)
    assert next(loader)[0].batch[0].tolist() == [0, 2, 4]


@pytest.mark.parametrize(("columns", "threads"), [(1, 0), (2**17, 1)])
def test_small_steps_of_tensors_need_no_thread(columns: int, threads: int) -> None:
    """A row of 2**17 numbers has half a megabyte: a step of four is loaded ahead of the training."""
    before = threading.active_count()
    batches = Batches(SampleOrder(8), 4, 4)
    with Loader(TensorDataset(torch.zeros(8, columns)), batches, ALONE, num_workers=1) as loader:
        next(loader)
        assert threading.active_count() - before == threads


def test_each_tensor_of_a_batch_is_moved() -> None:
    part = LoadedMicroBatch(torch.ones(1), 1.0, last=True)
    batch = {"x": [torch.ones(2), (torch.ones(3), "name")], "part": part}
    there = moved(batch, torch.device("meta"))
    assert [there["x"][0].device.type, there["x"][1][0].device.type] == ["meta", "meta"]
    assert there["x"][1][1] == "name"
    assert isinstance(there["part"], LoadedMicroBatch)
    loader = Loader([torch.ones(2)] * 4, Batches(SampleOrder(4), 2, 2), ALONE, device="meta", num_workers=1)
    assert next(loader)[0].batch.device.type == "meta"
    loader.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Loader(NUMBERS, Batches(SampleOrder(41), 4, 4), ALONE),
            r"order has size 41, and the source has 40 .*Order\(40\)",
        ),
        (lambda: Loader(NUMBERS, Batches(SampleOrder(40), 4, 4), DataShard(4, 4)), "rank must be from 0 to 3"),
        (lambda: Loader(NUMBERS, Batches(SampleOrder(40), 4, 4), DataShard(0, 5)), "5 processes cannot share"),
        (lambda: Loader(NUMBERS, Batches(SampleOrder(40), 4, 4), ALONE, prefetch=-1), "prefetch must be from 0"),
        (lambda: Loader(NUMBERS, Batches(SampleOrder(40), 4, 4), ALONE, num_workers=-1), "num_workers must be from 0"),
        (lambda: StepDataset(NUMBERS, Batches(SampleOrder(41), 4, 4), ALONE), "order has size 41"),
        (lambda: StepDataset(NUMBERS, Batches(SampleOrder(40), 4, 4), DataShard(0, 5)), "5 processes cannot share"),
    ],
)
def test_what_cannot_be_loaded(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_blocks_and_order_have_to_fit(bucket: str) -> None:
    write_records(bucket, [b"1"] * 40, block=10)
    with pytest.raises(ValueError, match=r"Make it SampleOrder\(block=10\)"):
        Loader(RecordDataset(bucket), Batches(SampleOrder(40), 4, 4), ALONE)
    with pytest.raises(ValueError, match="3 blocks are needed at a time"):
        Loader(
            RecordDataset(bucket, read_options=ReadOptions(memory=150)),
            Batches(SampleOrder(40, block=10, window=1), 4, 4),
            ALONE,
            prefetch=4,
        )


PINNED = [66, 766, 264, 707]


class Stubborn:
    """A batch that is moved to a device at its second try only."""

    left = 1

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers


def test_step_that_failed_to_move_remains_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def move(batch: Stubborn, _: torch.device) -> list[int]:
        if batch.numbers[0] == 8 and Stubborn.left:
            Stubborn.left -= 1
            raise RuntimeError("out of memory")
        return batch.numbers

    monkeypatch.setattr("trainyard_torch.data.loader.moved", move)
    batches = Batches(SampleOrder(40, shuffled=False), 4, 4)
    with Loader(NUMBERS, batches, ALONE, collate_fn=Stubborn, device="meta") as loader:
        seen = [next(loader)[0].batch[0] for _ in range(2)]
        with pytest.raises(RuntimeError, match="out of memory"):
            next(loader)
        assert loader.state_dict()["cursor"] == 8
        seen += [next(loader)[0].batch[0] for _ in range(4)]
    assert seen == [0, 4, 8, 12, 16, 20]


class Foreign(list[int]):
    """A data set of the user's, with methods of such names."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def prepare(self) -> None:
        raise AssertionError("it was not asked")

    check = prepare


def test_user_owned_data_set_is_untouched() -> None:
    source = Foreign(NUMBERS)
    with Loader(source, Batches(SampleOrder(40), 4, 4), ALONE) as loader:
        loader.load_state_dict(loader.state_dict())
        next(loader)
    assert not source.closed
