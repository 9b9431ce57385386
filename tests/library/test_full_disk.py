"""A store without room costs the checkpoint that did not fit, and no other: what that has written gives its room back."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.library.support.models import built
from tests.library.support.processes import run
from trainyard_torch import CheckpointError, Checkpoints, CheckpointSaveError, StoreError, TrainState


def full_disk(folder: Path) -> tuple[list[str], int]:
    """What is said where a checkpoint cannot be written, and the last step that is stored then."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]  # of one object alone
    logging.getLogger("trainyard_torch").addHandler(handler)
    model, optimizer = built(shard=1)
    checkpoints = Checkpoints(str(folder / "store"))
    state = {"train_state": TrainState(model, optimizer)}
    checkpoints.load(state)
    checkpoints.save(1, state, wait=True)
    stored = checkpoints._store.writing

    def full(path: str, _: object = None) -> Any:
        raise OSError(28, f"No space left on device: {path}")

    if dist.get_rank() == 1:
        checkpoints._store.writing = full  # type: ignore[method-assign,assignment]  # of one object alone
    checkpoints.save(2, state)
    with pytest.raises(CheckpointError, match="the checkpoint of step 2 was not written"):
        checkpoints.close()
    found = Checkpoints(str(folder / "store")).load(state)
    checkpoints = Checkpoints(str(folder / "store"))
    checkpoints.load(state)
    if dist.get_rank() == 1:
        checkpoints._store.writing = full  # type: ignore[method-assign,assignment]  # of one object alone
    checkpoints.save(3, state)
    while not checkpoints._pending or not checkpoints._pending.done():
        time.sleep(0.01)
    checkpoints._store.writing = stored  # type: ignore[method-assign]  # of one object alone
    checkpoints.save(4, state, wait=True)  # it says here what became of the last
    return logged, found.step if found else 0


def test_full_disk_is_reported_and_training_continues(tmp_path: Path) -> None:
    (logged, step), (quiet, _) = run(2, tmp_path, full_disk, tmp_path)
    assert step == 1
    assert (tmp_path / "store/LATEST").read_text() == "step-000000000004-000003\n"
    # What those that failed had written gives its room back.
    assert sorted(each.name for each in (tmp_path / "store").glob("step-*")) == [
        "step-000000000001-000001",
        "step-000000000004-000003",
    ]
    logged = [text for text in logged if "not written" in text]
    assert logged[0].startswith("the checkpoint of step 3 was not written: rank 1: ")
    assert "No space left on device" in logged[0]
    assert logged[0].endswith("training continues")
    assert [text for text in quiet if "not written" in text] == []


def test_store_full_at_the_end_releases_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"weights": {"w": torch.zeros(3)}}
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.load(state)

    def full(path: str, content: bytes) -> None:
        raise StoreError(f"cannot write {path}: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints._store, "write", full)
        with pytest.raises(CheckpointSaveError, match="No space left on device"):
            checkpoints.save(1, state, wait=True)
    assert not [*tmp_path.glob("step-*")]
    checkpoints.save(2, state, wait=True)
