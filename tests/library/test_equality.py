"""A training gives the same losses and parameters however it is spread: issue 6, line 2.3."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.library.support.equality import LONGEST, STEPS, Layout, Run, trained
from tests.library.support.processes import run
from trainyard_torch.mesh import Parallelism
from trainyard_torch.parallel.pipeline import supports_zbv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ZERO2, ZERO3 = {"reshard_after_forward": False}, {"reshard_after_forward": True}
TENSOR, PIPELINE = Parallelism(tensor=2), Parallelism(pipeline=2)
BOTH = Parallelism(tensor=2, pipeline=2)


CASES = {
    "one process": (1, Layout(micro=12)),
    "one process, 10 samples": (1, Layout(batch=10, micro=10)),
    "DDP on 2": (2, Layout()),
    "DDP on 3": (3, Layout()),
    "DDP on 4, uneven shares": (4, Layout(batch=10, micro=2)),
    "ZeRO-3 on 3, uneven shares": (3, Layout(batch=10, micro=2, data=ZERO3)),
    "ZeRO-2 on 2": (2, Layout(data=ZERO2, micro=3)),
    "hybrid sharding on 4": (4, Layout(Parallelism(replicate=2), data=ZERO3)),
    "tensor on 2": (2, Layout(TENSOR, data=ZERO3)),
    "pipeline on 2": (2, Layout(PIPELINE, micro=3)),
    "pipeline on 3": (3, Layout(Parallelism(pipeline=3), micro=3)),
    "interleaved on 2": (2, Layout(PIPELINE, micro=3, stages_per_rank=2)),
    "interleaved zero bubble on 2": (
        2,
        Layout(PIPELINE, micro=3, stages_per_rank=2, schedule="InterleavedZeroBubble", data={}),
    ),
    "pipeline 2 x DDP 2": (4, Layout(PIPELINE, micro=3)),
    "interleaved 2 x ZeRO-3 2": (4, Layout(PIPELINE, micro=3, stages_per_rank=2, data=ZERO3)),
}

if supports_zbv():
    ZBV = Layout(PIPELINE, micro=3, stages_per_rank=2, schedule="ZBVZeroBubble", data={})
    CASES |= {"zero bubble V on 2": (2, ZBV), "zero bubble V 2 x ZeRO-2 2": (4, ZBV)}


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[list[Run]]]:
    """What each rank of a world found in each case of that size: all in one start, as to import torch's parts takes seconds."""

    @cache
    def found(world_size: int) -> list[list[Run]]:
        cases = [layout for size, layout in CASES.values() if size == world_size]
        return run(world_size, tmp_path_factory.mktemp("ranks"), trained, cases, patience=300)

    return found


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("one")])
def test_the_same_as_one_process(case: str, of_ranks: Callable[[int], list[list[Run]]]) -> None:
    world_size, layout = CASES[case]
    number = [name for name, (size, _) in CASES.items() if size == world_size].index(case)
    (wanted,) = [
        run for (_, alone), run in zip(CASES.values(), of_ranks(1)[0], strict=False) if alone.batch == layout.batch
    ]
    assert wanted.losses[-1] < wanted.losses[0] - 0.3
    assert min(wanted.norms) < LONGEST < max(wanted.norms)
    for runs in of_ranks(world_size):
        same(runs[number], wanted)


def test_all_three_at_once(of_ranks: Callable[[int], list[list[Run]]], tmp_path: Path) -> None:
    """The least that has more than one process in each dimension."""
    layout = Layout(BOTH, micro=3, data=ZERO3)
    for (found,) in run(8, tmp_path, trained, [layout], patience=300):
        same(found, of_ranks(1)[0][0])


def same(found: Run, wanted: Run) -> None:
    assert len(found.losses) == STEPS
    np.testing.assert_allclose(found.losses, wanted.losses, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.norms, wanted.norms, rtol=0, atol=1e-5)
    assert found.parameters.keys() == wanted.parameters.keys()
    for name, values in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], values, rtol=0, atol=1e-5, err_msg=name)
