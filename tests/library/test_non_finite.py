"""Numbers that are not finite: the step is skipped, the training ends after several, and good checkpoints stay."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.library.support.processes import run
from trainyard_torch import (
    Batches,
    CheckpointPolicy,
    Checkpoints,
    Loader,
    Loop,
    NonFiniteError,
    NonFinitePolicy,
    Precision,
    Retention,
    SampleOrder,
    SaveInterval,
    replicate,
    start,
)
from trainyard_torch.checkpoint.communicator import Communicator
from trainyard_torch.non_finite import StepGuard, all_finite

SAMPLES = [torch.ones(3)] * 8


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TRAINYARD_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)


def train(bad: set[int], steps: int, folder: Path | None = None, **more: Any) -> tuple[list[int], nn.Module]:
    """Train with a NaN in the loss of the bad steps. Return the steps that have run."""
    done = []
    with start() as training:
        model = replicate(nn.Linear(3, 1), training.mesh)
        policy = CheckpointPolicy(store=SaveInterval(steps=1), keep=Retention(last=2))
        loop = Loop(
            training,
            model,
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            Loader(SAMPLES, Batches(SampleOrder(8), 4, micro_batch_size=4), training.data_shard, num_workers=0),
            total_steps=steps,
            checkpoints=Checkpoints(str(folder), policy=policy) if folder else None,
            **more,
        )
        for step in loop:
            for inputs in step:
                step.backward(model(inputs).mean() * (float("nan") if step.number in bad else 1))
            done.append(step.number)
    return done, model


def saved(folder: Path) -> list[int]:
    return sorted(int(each.parent.name[5:17]) for each in folder.glob("step-*/MANIFEST.json"))


def test_skipped_step_leaves_the_weights() -> None:
    done, model = train({3}, 4, non_finite=NonFinitePolicy(max_steps=2))
    assert done == [1, 2, 3, 4]
    _, other = train(set(), 3)
    # Three steps were taken, as if the bad one had not been.
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize(("roll_back", "code"), [(False, 98), (True, 99)])
def test_several_skipped_steps_end_the_training(roll_back: bool, code: int) -> None:  # noqa: FBT001 - a row of the table
    with pytest.raises(SystemExit) as ended:
        train({2, 4, 5, 6}, 9, non_finite=NonFinitePolicy(max_steps=3, roll_back=roll_back))
    assert ended.value.code == code
    assert "step 6: the gradients of 3 steps in a row are not finite" in str(ended.value.__cause__)


def test_bad_checkpoints_do_not_replace_good_ones(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        train({4, 5, 6}, 6, tmp_path)
    assert ended.value.code == NonFiniteError.exit_code
    assert saved(tmp_path) == [2, 3]


def test_checkpoints_continue_after_a_skipped_step(tmp_path: Path) -> None:
    train({3}, 5, tmp_path, non_finite=NonFinitePolicy())
    assert saved(tmp_path) == [4, 5]


def test_bad_running_means_are_not_saved() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    assert all_finite([], [model])
    model(torch.full((2, 3), float("nan")))
    assert not all_finite([], [model])


def test_infinity_in_another_buffer_is_right() -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("mask", torch.full((2, 2), float("-inf")))
    assert all_finite([], [model])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizer_state_survives_a_skipped_step(kind: Any, fused: bool) -> None:  # noqa: FBT001 - a row of the table
    model = nn.Linear(3, 1)
    optimizer, guard = (
        kind(model.parameters(), lr=0.1, fused=fused),
        StepGuard(NonFinitePolicy(), torch.device("cpu")),
    )

    def step(factor: float) -> torch.Tensor:
        (model(torch.ones(3)).sum() * factor).backward()
        guard.judge(nn.utils.clip_grad_norm_(model.parameters(), float("inf")))
        guard.step(optimizer)
        optimizer.zero_grad()
        return model.weight.detach().clone()

    first = step(1.0)
    assert torch.equal(step(float("nan")), first)
    second = step(1.0)
    assert torch.isfinite(second).all()
    assert not torch.equal(second, first)


def agreed(bad: int) -> bool:
    communicator = Communicator()
    return communicator.all_true(communicator.rank != bad)


@pytest.mark.parametrize(("bad", "all_good"), [(1, False), (9, True)])
def test_one_bad_rank_decides_for_all(tmp_path: Path, bad: int, all_good: bool) -> None:  # noqa: FBT001 - a row of the table
    assert run(2, tmp_path, agreed, bad) == [all_good, all_good]


def test_invalid_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="max_steps must be from 1 on, not 0"):
        NonFinitePolicy(max_steps=0)
    with pytest.raises(ValueError, match="fp16 skips steps by its loss scale"):
        train(set(), 1, non_finite=NonFinitePolicy(), precision=Precision("fp16", "cpu"))
