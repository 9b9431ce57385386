"""A training continues where it stood: to the last bit as it was laid out before, and as one process would in any other layout. Issue 6, line 2.3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.library.support.equality import Layout, Training
from tests.library.support.processes import run
from trainyard_torch import Checkpoints, Parallelism, TrainState

if TYPE_CHECKING:
    from pathlib import Path

ZERO3, PIPELINE = {"reshard_after_forward": True}, Parallelism(pipeline=2)
DDP, ONE = Layout(), Layout(micro=12)
FSDP, TENSOR = Layout(data=ZERO3), Layout(Parallelism(tensor=2), data=ZERO3)
STAGES, INTERLEAVED = Layout(PIPELINE, micro=3), Layout(PIPELINE, micro=3, stages_per_rank=2)
LAYOUTS = {
    "DDP": DDP, "FSDP2": FSDP, "tensor": TENSOR, "pipeline": STAGES,
    "interleaved, with one optimizer": INTERLEAVED,
}  # fmt: skip
LEG = 2
JOURNEY = [FSDP, STAGES, DDP, INTERLEAVED, FSDP, TENSOR]
"""On two processes, two steps each; then one process, and tensor parallel again."""


def leg(folder: Path, layout: Layout, first: int, last: int, *, seed: int = 99) -> Training:
    """These steps, from the checkpoint of the one before `first`, with one after `last`."""
    training = Training(layout, seed)
    checkpoints = Checkpoints(str(folder), mesh=training.mesh)
    state = {"train_state": TrainState(training.modules, training.optimizer)}
    found = checkpoints.load(state)
    assert (found.step if found else 0) == first - 1
    training.losses = training.steps(first, last)[0]
    checkpoints.save(last, state, wait=True)
    return training


Seen = tuple[list[float], dict[str, np.ndarray]]


def undisturbed(folder: Path) -> dict[str, Seen]:
    """Six steps in each layout, with a checkpoint after the third."""
    found = {}
    for name, layout in LAYOUTS.items():
        training = leg(folder / name, layout, 1, 3, seed=7)
        found[name] = training.steps(4, 6)[0], training.parameters()
    return found


def resumed(folder: Path) -> dict[str, Seen]:
    found = {}
    for name, layout in LAYOUTS.items():
        training = leg(folder / name, layout, 4, 6)
        found[name] = training.losses, training.parameters()
    return found


def test_stop_and_resume_bit_for_bit(tmp_path: Path) -> None:
    before, after = run(2, tmp_path, undisturbed, tmp_path), run(2, tmp_path, resumed, tmp_path)
    for rank in (0, 1):
        for name, (losses, parameters) in before[rank].items():
            again, theirs = after[rank][name]
            assert again == losses, name
            assert theirs.keys() == parameters.keys()
            assert all(np.array_equal(theirs[key], parameters[key]) for key in parameters), name


def journey(folder: Path) -> list[float]:
    losses = []
    for number, layout in enumerate(JOURNEY):
        first = 1 + LEG * number
        losses += leg(folder, layout, first, first + LEG - 1, seed=99 if number else 7).losses
    return losses


def alone(folder: Path) -> tuple[list[float], list[float]]:
    """What one process finds that goes on, and what it would have found from the beginning."""
    first = 1 + LEG * len(JOURNEY)
    return leg(folder, ONE, first, first + LEG - 1).losses, Training(ONE).steps(1, first + 2 * LEG - 1)[0]


def back(folder: Path) -> list[float]:
    first = 1 + LEG * (len(JOURNEY) + 1)
    return leg(folder, TENSOR, first, first + LEG - 1).losses


def test_from_one_layout_to_the_next_and_back(tmp_path: Path) -> None:
    there, same = run(2, tmp_path, journey, tmp_path / "kept")
    assert there == same
    ((middle, wanted),) = run(1, tmp_path, alone, tmp_path / "kept")
    end, _ = run(2, tmp_path, back, tmp_path / "kept")
    assert there + middle + end == pytest.approx(wanted, rel=1e-9, abs=0), "the optimizer's state counts"
    assert wanted[-1] < wanted[0]
