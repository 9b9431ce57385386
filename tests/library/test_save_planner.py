"""The plan of a checkpoint is reused while nothing changes, and made again after a change or a failure."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import default_planner

from tests.library.support.models import built
from tests.library.support.processes import run
from trainyard_torch import Checkpoints, CheckpointSaveError, StoreError, TrainState
from trainyard_torch.checkpoint.manifest import Name


class Plans:
    """Counts the global plans that rank 0 makes."""

    def __init__(self) -> None:
        self.made = 0
        self._act = default_planner.create_default_global_save_plan
        default_planner.create_default_global_save_plan = self

    def __call__(self, *words: Any, **more: Any) -> Any:
        self.made += 1
        return self._act(*words, **more)


def tensor_of(folder: Path, step: int, like: torch.Tensor) -> torch.Tensor:
    """The tensor of a checkpoint, as torch itself reads it."""
    blank = {"extra": {"w": torch.zeros_like(like)}}
    dcp.load(blank, checkpoint_id=folder / "store" / str(Name(step, 1)))
    return blank["extra"]["w"]


def saves(folder: Path) -> list[tuple[int, float]]:
    """After each save: the plans so far, and what a load of it returns."""
    plans, found = Plans(), []
    checkpoints = Checkpoints(str(folder / "store"))
    state: dict[str, Any] = {"train_state": TrainState(*built(shard=1)), "extra": {"w": torch.zeros(3)}}
    checkpoints.load(state)

    def save(step: int) -> None:
        checkpoints.save(step, state, wait=True)
        found.append((plans.made, float(tensor_of(folder, step, state["extra"]["w"])[0])))

    for step in (1, 2, 3):
        state["extra"]["w"] = torch.full((3,), float(step))
        save(step)
    state["extra"]["w"] = torch.full((3,), 4.5, dtype=torch.float64)
    save(4)
    save(5)
    if dist.get_rank() == 1:
        state["other"] = {"rank1": 7}
    save(6)
    return found


def test_unchanged_plans_are_reused(tmp_path: Path) -> None:
    first, second = run(2, tmp_path, saves, tmp_path)
    assert [made for made, _ in first] == [1, 1, 1, 2, 2, 3]
    assert [made for made, _ in second] == [0] * 6
    assert [value for _, value in first] == [value for _, value in second] == [1, 2, 3, 4.5, 4.5, 4.5]


def test_plan_is_made_again_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = Plans()
    monkeypatch.setattr(default_planner, "create_default_global_save_plan", plans)
    checkpoints = Checkpoints(str(tmp_path))
    state = {"a": {"w": torch.ones(2)}}
    checkpoints.load(state)
    for step in (1, 2):
        checkpoints.save(step, state, wait=True)

    def full(*_: object) -> None:
        raise StoreError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints._store, "writing", full)
        with pytest.raises(CheckpointSaveError, match="no space"):
            checkpoints.save(3, state, wait=True)
    checkpoints.save(4, state, wait=True)
    assert plans.made == 2
