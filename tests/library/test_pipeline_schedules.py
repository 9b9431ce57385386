"""Which stages a schedule of a pipeline wants where, and when parameters are freed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere
from torch import nn
from torch.distributed.tensor import DTensor

from tests.library.support.processes import run
from trainyard_torch import Pipeline, pipeline_stages, replicate, shard
from trainyard_torch.mesh import Parallelism
from trainyard_torch.parallel.pipeline import stage_numbers, supports_zbv

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("schedule", "own", "message"),
    [
        ("GPipe", 1, "schedule must be one of 1F1B, .*, not 'GPipe'"),
        ("1F1B", 2, "1F1B has one stage for each process, and not 2"),
        ("InterleavedZeroBubble", 1, "InterleavedZeroBubble needs at least two stages"),
        ("ZBVZeroBubble", 3, "two stages for each process, and not 3" if supports_zbv() else "use torch 2.15"),
    ],
)
def test_stages_that_a_schedule_cannot_have(schedule: Any, own: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stage_numbers(0, 4, own, schedule)


def test_stages_of_each_rank() -> None:
    assert [stage_numbers(rank, 3, 2, "InterleavedZeroBubble") for rank in range(3)] == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.skipif(not supports_zbv(), reason="needs torch 2.15")
def test_zbv_returns_to_the_first_rank() -> None:
    assert [stage_numbers(rank, 3, 2, "ZBVZeroBubble") for rank in range(3)] == [[0, 5], [1, 4], [2, 3]]


def four() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))


def refused() -> list[str]:
    mesh, found = Parallelism(pipeline=2).mesh(2, "cpu"), []
    stages = pipeline_stages(four(), mesh, stages_per_rank=2)
    for modules in (list(reversed(stages)), [replicate(each, mesh) for each in stages]):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the test looks at the words
            Pipeline(modules, F.mse_loss, mesh, n_microbatches=2, schedule="InterleavedZeroBubble")
        found.append(str(error.value))
    return found


def test_foreign_stages_and_ddp_are_refused(tmp_path: Path) -> None:
    order, ddp = run(2, tmp_path, refused)[0]
    assert "pass the same schedule to pipeline_stages and Pipeline" in order
    assert "use shard in place of replicate" in ddp


def freed() -> list[list[bool]]:
    """Whether the first block is freed when the second begins: by default, and on request."""
    mesh, found = Parallelism(pipeline=2).mesh(4, "cpu"), []
    for reshards in (None, True):
        (stage,) = pipeline_stages(four(), mesh)
        first, second = stage
        model, seen = shard(stage, mesh, blocks=[first, second], reshard_after_forward=reshards), list[bool]()
        second.register_forward_pre_hook(
            lambda *_, seen=seen, first=first: seen.append(isinstance(first.weight, DTensor))
        )
        pipeline = Pipeline([model], F.mse_loss, mesh, n_microbatches=2)
        pipeline.step(torch.ones(2, 4), torch.ones(2, 4))
        found.append(sorted(set(seen)))
    return found


def test_pipelines_keep_gathered_parameters(tmp_path: Path) -> None:
    assert run(4, tmp_path, freed) == [[[False], [True]]] * 4
