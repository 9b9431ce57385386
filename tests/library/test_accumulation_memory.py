"""The memory that gradients take while a step accumulates micro-batches, of one of many processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainyard_torch import gradient_sync, shard
from trainyard_torch.mesh import Parallelism
from trainyard_torch.process_group import destroy

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS = 8
WIDTH = 256
LAYERS = 6
PARAMETERS = LAYERS * WIDTH * WIDTH
MICRO_BATCHES = 4
SIZE, SIZE_OF_SUMS = 4, 8
"""Bytes of a number: parameters are float32, and sums on CPUs are float64."""


@pytest.fixture(autouse=True)
def _one_of_many_ranks() -> Iterator[None]:
    """Collectives of a fake process group return at once, so that one process has the memory of one of eight."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    destroy()


def held_after_each(*, whole: bool, copies: int = 1) -> list[int]:
    """Return the bytes that each micro-batch leaves allocated since the begin of the step."""
    mesh = Parallelism(replicate=copies).mesh(RANKS, "cpu")
    blocks = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = shard(nn.Sequential(*blocks), mesh, blocks=blocks, whole_gradients=whole)
    inputs = torch.randn(2, WIDTH)

    def micro_batch(*, last: bool) -> None:
        with gradient_sync(model, last):
            model(inputs).sum().backward()

    # The first step allocates what all others use.
    micro_batch(last=True)
    model.zero_grad()
    held = [0]
    for number in range(MICRO_BATCHES):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            micro_batch(last=number == MICRO_BATCHES - 1)
        held.append(held[-1] + sum(event.self_cpu_memory_usage for event in found.key_averages()))
    return held[1:]


def test_reduce_scattered_gradients_take_one_part() -> None:
    own = PARAMETERS // RANKS * SIZE
    assert held_after_each(whole=False) == [own] * MICRO_BATCHES


def test_whole_gradients_take_all_parameters_until_the_last() -> None:
    every = PARAMETERS * SIZE_OF_SUMS
    assert held_after_each(whole=True) == [every, every, every, PARAMETERS // RANKS * SIZE]


def test_copies_keep_their_part_until_the_last() -> None:
    part = PARAMETERS // (RANKS // 2)
    held = part * SIZE_OF_SUMS
    assert held_after_each(whole=False, copies=2) == [held, held, held, part * SIZE]
