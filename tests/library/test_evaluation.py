"""A validation set is gone through once by all, whatever their number, and the training knows nothing of it."""

import os
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.library.support.processes import run
from trainyard_torch import (
    Batches,
    DataShard,
    EvaluationLoader,
    Loader,
    Parallelism,
    SampleOrder,
    data_shard,
    shard,
    submesh,
)
from trainyard_torch.data import ReadOptions, RecordDataset, write_records

ALONE = DataShard(0, 1)
NUMBERS = list(range(11))


def noisy(sample: int, rng: np.random.Generator) -> tuple[int, float]:
    return sample, rng.random()


def seen(evaluation: EvaluationLoader) -> list[tuple[int, float]]:
    return [
        pair
        for (numbers, noise), count in evaluation
        for pair in list(zip(numbers.tolist(), noise.tolist(), strict=True))[:count]
    ]


@pytest.mark.parametrize(("ahead", "workers"), [(0, 0), (0, 1), (2, 3), (9, 2)])
def test_threads_and_processes_change_nothing(ahead: int, workers: int) -> None:
    wanted = seen(EvaluationLoader(NUMBERS, 11, ALONE, transform=noisy, num_workers=0))
    assert [number for number, _ in wanted] == NUMBERS
    each = [
        EvaluationLoader(NUMBERS, 2, DataShard(rank, 3), transform=noisy, prefetch=ahead, num_workers=workers)
        for rank in range(3)
    ]
    for _ in range(2):
        assert [pair for evaluation in each for pair in seen(evaluation)] == wanted
    assert {len(list(evaluation)) for evaluation in each} == {len(each[0])} == {2}
    assert seen(EvaluationLoader(NUMBERS, 2, ALONE, transform=noisy, seed=1)) != wanted


def test_the_training_is_where_it_was() -> None:
    loader = Loader(NUMBERS, Batches(SampleOrder(11, 1), 4, 4), ALONE, transform=noisy)
    undisturbed = [part.batch[1].tolist() for (part,) in islice(loader, 4)]
    loader.load_state_dict({**loader.state_dict(), "cursor": 0})
    disturbed = []
    for (part,) in islice(loader, 4):
        disturbed.append(part.batch[1].tolist())
        seen(EvaluationLoader(NUMBERS, 3, ALONE, transform=noisy))
    assert disturbed == undisturbed
    assert loader.state_dict()["cursor"] == 16
    loader.close()


def test_who_goes_no_further_leaves_no_thread() -> None:
    def slow(sample: int, _: np.random.Generator) -> int:
        if sample > 5:
            raise OSError("the disk is on fire")
        return sample

    evaluation = EvaluationLoader(NUMBERS, 1, ALONE, transform=slow, prefetch=3)
    for batch, _ in evaluation:
        assert batch.tolist() == [0]
        break
    with pytest.raises(OSError, match="on fire") as raised:
        list(evaluation)
    assert raised.value.__notes__ == ["while samples 6 of epoch 0 were loaded"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("trainyard-evaluate")]


@pytest.fixture
def bucket() -> Iterator[str]:
    yield "memory://bucket/validation"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_a_block_is_read_by_one_process_alone(bucket: str) -> None:
    write_records(bucket, (bytes([number]) for number in range(60)), block=10)
    reads, numbers = 0, []
    for rank in range(3):
        source = RecordDataset(bucket, lambda raw: raw[0])
        numbers += [
            number for batch, count in EvaluationLoader(source, 4, DataShard(rank, 3)) for number in batch[:count]
        ]
        # Beside the index.
        reads += source.reads.count - 1
        source.close()
    assert torch.stack(numbers).tolist() == list(range(60))
    assert reads == 6
    with pytest.raises(ValueError, match=r"ReadOptions\(memory="):
        EvaluationLoader(RecordDataset(bucket, read_options=ReadOptions(memory=100)), 40, ALONE)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: EvaluationLoader(NUMBERS, 0, ALONE), "batch_size must be from 1 on, got 0"),
        (lambda: EvaluationLoader(NUMBERS, 1, ALONE, prefetch=-1), "prefetch must be from 0 on, got -1"),
        (lambda: EvaluationLoader(NUMBERS, 1, ALONE, num_workers=-1), "num_workers must be from 0 on, got -1"),
        (lambda: EvaluationLoader(NUMBERS, 1, DataShard(2, 2)), "rank must be from 0 to 1, got 2"),
        (lambda: EvaluationLoader([], 1, ALONE), "the source has no samples"),
    ],
)
def test_values_that_make_no_sense(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


def validated() -> Any:
    """The mean of what a sharded model says, over fewer samples than make all processes' batches full."""
    mesh = Parallelism().mesh(dist.get_world_size(), "cpu")
    torch.manual_seed(2)
    model = shard(nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double(), mesh, blocks=[])
    samples = [torch.tensor([number], dtype=torch.float64) for number in range(5)]
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for batch, count in EvaluationLoader(samples, 1, data_shard(mesh)):
            sums += torch.tensor([float(model(batch)[:count].sum()), count], dtype=torch.float64)
    dist.all_reduce(sums, group=submesh(mesh, "data").get_group())
    return float(sums[0] / sums[1]), int(sums[1]), int(os.environ["RANK"])


def test_sharded_model_involves_all_ranks_throughout(tmp_path: Path) -> None:
    ((alone, samples, _),) = run(1, tmp_path, validated)
    assert samples == 5
    for mean, count, _ in run(3, tmp_path, validated):
        assert (mean, count) == (pytest.approx(alone, rel=1e-9), 5)
