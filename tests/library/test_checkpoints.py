"""Checkpoints of a training with several processes: they come back as they were, whatever happened in between."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.library.support.models import built
from tests.library.support.processes import RankError, run
from trainyard_torch import (
    CheckpointError,
    CheckpointPolicy,
    Checkpoints,
    JobAttempt,
    NoUsableCheckpointError,
    Retention,
    SaveInterval,
    StaleAttemptError,
    StoreError,
    Tier,
    TrainState,
)

STEP = SaveInterval(steps=1)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> list[float]:
    """The losses of these steps; all processes see the same samples."""
    losses = []
    for step in range(first, last + 1):
        torch.manual_seed(step)
        loss = model(torch.randn(4, 6, dtype=torch.float64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def undisturbed(last: int) -> list[float]:
    return train(*built(), 1, last)


def save_each(folder: Path, upto: int, shard: int = 0) -> None:
    """Steps 1 to `upto` with a checkpoint after each, from what there is."""
    model, optimizer = built(shard=shard)
    checkpoints = Checkpoints(str(folder / "store"))
    state = {"train_state": TrainState(model, optimizer)}
    found = checkpoints.load(state)
    for step in range(found.step + 1 if found else 1, upto + 1):
        train(model, optimizer, step, step)
        checkpoints.save(step, state, data={"cursor": 4 * step}, wait=True)


def go_on(folder: Path, upto: int, shard: int = 0, memory: int = 0) -> tuple[int, list[float], int]:
    """From what there is: the step of the checkpoint, the losses from there on, and where the data stood."""
    model, optimizer = built(shard=shard, seed=99)
    checkpoints = Checkpoints(
        str(folder / "store"), policy=CheckpointPolicy(memory=STEP if memory else None, memory_dir=str(folder / "shm"))
    )
    found = checkpoints.load({"train_state": TrainState(model, optimizer)})
    assert found
    return found.step, train(model, optimizer, found.step + 1, upto), found.data["cursor"]


@pytest.mark.parametrize(
    ("before", "after"),
    [((1, 0), (1, 0)), ((2, 1), (2, 1)), ((2, 1), (3, 1)), ((3, 1), (1, 0)), ((1, 0), (2, 1))],
    ids=["one", "two", "two to three", "three sharded to one", "one to two sharded"],
)  # fmt: skip
def test_resume_is_bit_exact_at_any_world_size(tmp_path: Path, before: tuple[int, int], after: tuple[int, int]) -> None:
    run(before[0], tmp_path, save_each, tmp_path, 3, before[1])
    expected = undisturbed(6)[3:]
    for step, losses, cursor in run(after[0], tmp_path, go_on, tmp_path, 6, after[1]):
        assert (step, cursor) == (3, 12)
        assert losses == pytest.approx(expected, rel=1e-12, abs=0)
        if before[0] == after[0] == 1:
            assert losses == expected


def damage(folder: Path, step: int) -> None:
    (victim,) = (folder / "store").glob(f"step-{step:012}-*/__0_0.distcp")
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)


def test_flipped_bit_costs_one_checkpoint_and_is_reported(tmp_path: Path) -> None:
    run(2, tmp_path, save_each, tmp_path, 3, 1)
    damage(tmp_path, 3)
    assert [step for step, *_ in run(2, tmp_path, go_on, tmp_path, 3, 1)] == [2, 2]


def expect_none_whole(folder: Path) -> str:
    model, optimizer = built()
    with pytest.raises(NoUsableCheckpointError) as raised:
        Checkpoints(str(folder / "store")).load({"train_state": TrainState(model, optimizer)})
    return str(raised.value)


def test_without_usable_checkpoint_no_rank_starts_over(tmp_path: Path) -> None:
    run(2, tmp_path, save_each, tmp_path, 2)
    damage(tmp_path, 1)
    damage(tmp_path, 2)
    first, second = run(2, tmp_path, expect_none_whole, tmp_path)
    assert first == second
    assert "step-000000000002-000001: rank" in first
    assert "its checksum is another one" in first
    assert "restore one, or start in another folder" in first


def expect_mismatch(folder: Path) -> str:
    model = torch.nn.Linear(6, 5).double()
    with pytest.raises(CheckpointError) as raised:
        Checkpoints(str(folder / "store")).load(
            {"train_state": TrainState(model, torch.optim.AdamW(model.parameters()))}
        )
    return str(raised.value)


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    run(2, tmp_path, save_each, tmp_path, 1)
    first, second = run(2, tmp_path, expect_mismatch, tmp_path)
    assert first == second
    assert first.startswith("checkpoint step-000000000001-000001 cannot be loaded into this program: rank 0: ")
    assert len(first) < 400


LOST = "rank 1 has ended without a word|Connection (closed|reset) by peer"
"""Of a rank that was killed: the harness may hear of it first, or of another that has lost it."""


def die_while_writing(folder: Path, victim: int) -> None:
    """Rank 1 is gone amid the writing of this step."""
    model, optimizer = built(shard=1)
    checkpoints = Checkpoints(str(folder / "store"))
    state = {"train_state": TrainState(model, optimizer)}
    checkpoints.load(state)
    for step in range(1, victim + 1):
        train(model, optimizer, step, step)
        if (step, dist.get_rank()) == (victim, 1):
            checkpoints._store.writing = lambda *_: os._exit(9)  # type: ignore[method-assign,assignment,misc]
        checkpoints.save(step, state, data={"cursor": 4 * step}, wait=True)
    time.sleep(60)


def test_rank_death_while_saving_keeps_previous_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=LOST):
        run(2, tmp_path, die_while_writing, tmp_path, 2)
    assert sorted(each.name for each in (tmp_path / "store").glob("step-*")) == [
        "step-000000000001-000001",
        "step-000000000002-000001",
    ]
    ((step, losses, _), _) = run(2, tmp_path, go_on, tmp_path, 4, 1)
    assert (step, losses) == (1, pytest.approx(undisturbed(4)[1:], rel=1e-12))


def test_rank_death_in_first_checkpoint_starts_from_scratch(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=LOST):
        run(2, tmp_path, die_while_writing, tmp_path, 1)
    run(2, tmp_path, save_each, tmp_path, 2, 1)
    assert (tmp_path / "store/LATEST").read_text() == "step-000000000002-000002\n"


def left_behind(folder: Path) -> str:
    model, optimizer = built()
    state = {"train_state": TrainState(model, optimizer)}
    old = Checkpoints(str(folder / "store"), job_attempt=JobAttempt("job", 1))
    old.load(state)
    new = Checkpoints(str(folder / "store"), job_attempt=JobAttempt("job", 2))
    new.load(state)
    new.save(5, state, wait=True)
    with pytest.raises(StaleAttemptError) as raised:
        old.save(9, state, wait=True)
    with pytest.raises(StaleAttemptError, match="attempt 2 of this job"):
        Checkpoints(str(folder / "store"), job_attempt=JobAttempt("job", 1)).load(state)
    return str(raised.value)


def test_a_stale_attempt_cannot_commit(tmp_path: Path) -> None:
    outcomes = run(2, tmp_path, left_behind, tmp_path)
    assert "number 2 there, and this is number 1" in outcomes[0]
    assert outcomes[0] == outcomes[1]
    assert (tmp_path / "store/LATEST").read_text() == "step-000000000005-000002\n"


def tiers(folder: Path) -> list[tuple[int, Tier | None]]:
    """A memory checkpoint each step, one in the store at every third."""
    model, optimizer = built(shard=1)
    checkpoints = Checkpoints(
        str(folder / "store"),
        policy=CheckpointPolicy(store=SaveInterval(steps=3), memory=STEP, memory_dir=str(folder / "shm")),
    )
    state = {"train_state": TrainState(model, optimizer)}
    checkpoints.load(state)
    made = []
    for step in range(1, 6):
        train(model, optimizer, step, step)
        tier = checkpoints.should_save(step)
        made.append((step, tier))
        if tier:
            checkpoints.save(step, state, data={"cursor": 4 * step}, tier=tier, wait=True)
    return made


def test_what_is_in_memory_outlives_the_processes(tmp_path: Path) -> None:
    made = run(2, tmp_path, tiers, tmp_path)
    assert (
        made[0] == made[1] == [(1, Tier.MEMORY), (2, Tier.MEMORY), (3, Tier.STORE), (4, Tier.MEMORY), (5, Tier.MEMORY)]
    )
    assert len([*(tmp_path / "shm").rglob("rank-*")]) == 2, "more than the last is kept"
    for step, losses, cursor in run(2, tmp_path, go_on, tmp_path, 8, 1, 1):
        assert (step, cursor) == (5, 20)
        assert losses == pytest.approx(undisturbed(8)[5:], rel=1e-12)


@pytest.mark.parametrize("lost", ["a part", "all", "the store", "another world", "fewer"])
def test_store_serves_where_memory_cannot(tmp_path: Path, lost: str) -> None:
    run(2, tmp_path, tiers, tmp_path)
    parts = sorted((tmp_path / "shm").rglob("rank-*"))
    if lost == "a part":
        parts[1].write_bytes(parts[1].read_bytes()[:100])
    elif lost == "all":
        for part in parts:
            part.unlink()
    elif lost == "the store":
        # A store that was emptied by hand means to start over: the marks are gone too.
        for file in sorted((tmp_path / "store").rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        with pytest.raises(RankError, match="assert found"):
            run(2, tmp_path, go_on, tmp_path, 8, 1, 1)
        return
    world_size = {"another world": 3, "fewer": 1}.get(lost, 2)
    for step, losses, _ in run(world_size, tmp_path, go_on, tmp_path, 6, 1, 1):
        assert (step, losses) == (3, pytest.approx(undisturbed(6)[3:], rel=1e-12))


def test_what_is_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), policy=CheckpointPolicy(keep=Retention(last=1, best=1, metric="loss")))
    state = {"weights": {"w": torch.zeros(3)}}
    checkpoints.load(state)
    for step, loss in ((1, 0.5), (2, 0.1), (3, 0.4), (4, 0.3)):
        checkpoints.save(step, state, metrics={"loss": loss}, wait=True)
    assert sorted(each.name for each in tmp_path.glob("step-*")) == [
        "step-000000000002-000001",
        "step-000000000004-000001",
    ]


def test_metrics_are_numbers_of_any_kind(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), policy=CheckpointPolicy(keep=Retention(last=1, best=1, metric="loss")))
    state = {"weights": {"w": torch.zeros(3)}}
    checkpoints.load(state)
    for step, loss in ((1, None), (2, np.float32(0.5)), (3, torch.tensor(0.75)), (4, 1)):
        checkpoints.save(step, state, metrics={"loss": loss}, wait=True)  # type: ignore[dict-item]  # that is the test
    with pytest.raises(ValueError, match="metrics: loss must be a number, got 'low'"):
        checkpoints.save(5, state, metrics={"loss": "low"})  # type: ignore[dict-item]  # a wrong type, too
    assert checkpoints.failures == 0
    assert [each.name[:17] for each in sorted(tmp_path.glob("step-*"))] == ["step-000000000002", "step-000000000004"]


def test_training_does_not_alter_a_running_save(tmp_path: Path) -> None:
    weights = torch.zeros(1000)
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.load({"weights": {"w": weights}})
    checkpoints.save(1, {"weights": {"w": weights}})
    weights.fill_(1)
    checkpoints.close()
    Checkpoints(str(tmp_path)).load({"weights": {"w": weights}})
    assert weights.sum() == 0


def test_stored_step_is_not_written_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    state = {"weights": {"w": torch.zeros(3)}}
    checkpoints.load(state)
    checkpoints.save(1, state)
    checkpoints.save(1, state, wait=True)
    metadata = tmp_path / "step-000000000001-000001/.metadata"
    made = metadata.stat().st_ino
    checkpoints.save(1, state, wait=True)
    assert metadata.stat().st_ino == made
    assert Checkpoints(str(tmp_path)).load(state)


def differ(folder: Path) -> tuple[float, float]:
    """Each rank saves values of its own under the same names; what comes back."""
    state = {"buffers": {"mean": torch.full((64,), float(dist.get_rank())), "count": torch.tensor(dist.get_rank())}}
    checkpoints = Checkpoints(str(folder / "store"))
    checkpoints.load(state)
    checkpoints.save(1, state, wait=True)
    found = {"buffers": {"mean": torch.full((64,), -1.0), "count": torch.tensor(-1)}}
    Checkpoints(str(folder / "store")).load(found)
    return float(found["buffers"]["mean"].mean()), float(found["buffers"]["count"])


def test_rank_0_is_stored_where_ranks_differ(tmp_path: Path) -> None:
    assert run(3, tmp_path, differ, tmp_path) == [(0.0, 0.0)] * 3


def away_while_verified(folder: Path) -> str:
    """One rank's store fails while the files are looked at."""
    model, optimizer = built()
    checkpoints = Checkpoints(str(folder / "store"))
    if dist.get_rank() == 1:

        def away(path: str, *_: object, **__: object) -> Any:
            raise StoreError(f"cannot read {path}: 503")

        checkpoints._store.measure = away  # type: ignore[method-assign,assignment]
    with pytest.raises(StoreError) as raised:
        checkpoints.load({"train_state": TrainState(model, optimizer)})
    return str(raised.value)


def test_unresponsive_store_breaks_no_checkpoint(tmp_path: Path) -> None:
    run(2, tmp_path, save_each, tmp_path, 2)
    first, second = run(2, tmp_path, away_while_verified, tmp_path)
    assert first == second
    assert first.startswith("rank 1: cannot read step-000000000002-000001/")
    assert [step for step, *_ in run(2, tmp_path, go_on, tmp_path, 2)] == [2, 2]


def test_step_behind_the_checkpoint_is_refused(tmp_path: Path) -> None:
    """The next start would go on from the other one, and this one would be tidied away."""
    state = {"weights": {"w": torch.zeros(3)}}
    first = Checkpoints(str(tmp_path))
    first.load(state)
    first.save(100, state, wait=True)
    second = Checkpoints(str(tmp_path))
    second.load(state)
    with pytest.raises(ValueError, match="step must be from 100 on, which this training has already reached, not 60"):
        second.save(60, state)
    second.save(100, state, wait=True)
    second.save(101, state, wait=True)
    with pytest.raises(ValueError, match="step must be from 101 on"):
        second.save(100, state)
    assert (tmp_path / "LATEST").read_text() == "step-000000000101-000002\n"


def test_load_comes_first(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"call load\(\) before save"):
        Checkpoints(str(tmp_path)).save(1, {})
