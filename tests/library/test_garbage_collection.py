"""Python's garbage is collected after the same steps on all ranks, and afterwards as before."""

from __future__ import annotations

import gc
import os
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.library.support.processes import run
from tests.library.support.programs import free_port
from trainyard_torch import Batches, Loader, Loop, SampleOrder, replicate, start
from trainyard_torch.garbage_collection import collected_every

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SAMPLES = [(torch.ones(3), torch.ones(1)) for _ in range(16)]
STEPS = 7


class Cycle:
    """Garbage that only a collection frees."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave Python's collector to the next test as it was."""
    yield
    gc.unfreeze()
    gc.enable()


def loop(training: Any, **options: Any) -> tuple[nn.Module, Loop]:
    model = replicate(nn.Linear(3, 1), training.mesh)
    data = Loader(SAMPLES, Batches(SampleOrder(16, seed=2), 4, micro_batch_size=2), training.data_shard, num_workers=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, Loop(training, model, optimizer, data, total_steps=STEPS, **options)


def steps_with_a_collection(port: int) -> list[int]:
    """The steps after which a full collection ran, in a training where each rank makes another amount of garbage."""
    found: list[int] = []
    number, rank = 0, dist.get_rank()
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(port)

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "stop" and about["generation"] == 2 and number:
            found.append(number)

    with start() as training:
        model, steps = loop(training, collect_every=3)
        gc.callbacks.append(note)
        for step in steps:
            number = step.number
            for inputs, targets in step:
                step.backward((model(inputs) - targets).square().mean())
            kept = [Cycle() for _ in range(9000 * (1 + rank))]
            del kept
        number = 0
        gc.callbacks.remove(note)
    return found


def test_ranks_collect_after_the_same_steps(tmp_path: Path) -> None:
    assert run(2, tmp_path, steps_with_a_collection, free_port()) == [[1, 3, 6], [1, 3, 6]]


def test_garbage_of_a_step_is_freed() -> None:
    with collected_every(2) as collect:
        collect(1)
        kept = Cycle()
        gone = weakref.ref(kept)
        del kept
        collect(3)
        assert gone()
        collect(4)
        assert gone() is None


def test_old_objects_are_not_visited() -> None:
    old = Cycle()
    gone = weakref.ref(old)
    with collected_every(1) as collect:
        assert any(each is old for each in gc.get_objects()) is False
        del old
        collect(1)
        assert gone(), "a collection within visits the objects that were made since"
    gc.collect()
    assert gone() is None


def fail_within() -> None:
    with collected_every(1):
        assert not gc.isenabled()
        raise OSError("no data")


@pytest.mark.parametrize("switch", [gc.enable, gc.disable])
def test_python_collects_as_before_after_the_loop(switch: Callable[[], None]) -> None:
    switch()
    before = gc.isenabled()
    with pytest.raises(OSError, match="no data"):
        fail_within()
    assert gc.isenabled() == before
    assert gc.get_freeze_count() == 0


def test_objects_that_the_program_froze_stay_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with collected_every(1):
        pass
    assert 0 < gc.get_freeze_count() <= frozen


@pytest.mark.parametrize("every", [None, 5])
def test_a_loop_may_leave_it_to_python(every: int | None) -> None:
    with start() as training:
        model, steps = loop(training, collect_every=every)
        for step in steps:
            assert gc.isenabled() == (every is None)
            for inputs, targets in step:
                step.backward((model(inputs) - targets).square().mean())
            if step.number == 2:
                break
        del steps, step
        assert gc.isenabled()


def test_no_steps_between_collections() -> None:
    with start() as training, pytest.raises(ValueError, match="collect_every must be a number of steps from 1 on"):
        loop(training, collect_every=0)
