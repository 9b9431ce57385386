"""The loop does what one would write by hand, from wherever it begins, at any number of processes."""

import copy
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from tests.library.support.processes import run
from tests.library.support.programs import free_port, started
from trainyard_torch import (
    Batches,
    CheckpointPolicy,
    Checkpoints,
    DataShard,
    Loader,
    Loop,
    LRSchedule,
    Precision,
    Retention,
    SampleOrder,
    SaveInterval,
    Step,
    compress,
    loop as module,
    replicate,
    start,
)
from trainyard_torch.parallel.gradients import GradientSync

SIZE, BATCH, STEPS = 22, 10, 12
torch.manual_seed(5)
SAMPLES = [(torch.randn(3, dtype=torch.float64), torch.randn(1, dtype=torch.float64)) for _ in range(SIZE)]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def by_hand() -> list[float]:
    """The losses of the same training, without the library's loop: whole batches in one process."""
    torch.manual_seed(0)
    model, batches = net(), Batches(SampleOrder(SIZE, seed=2), BATCH, micro_batch_size=BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule, losses = (
        LRSchedule(base_lr=0.1, batch_size=BATCH, reference_batch_size=BATCH, warmup_samples=40, start_lr=0.0),
        [],
    )
    for _ in range(STEPS):
        schedule.apply(optimizer, batches.cursor)
        (part,) = batches.step(DataShard(0, 1))
        inputs, targets = (
            torch.stack(each) for each in zip(*(SAMPLES[number] for number in part.samples), strict=True)
        )
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        batches = batches.after()
        losses.append(float(loss.detach()))
    return losses


def made(training: Any, folder: Path | None, **more: Any) -> tuple[nn.Module, Loop]:
    model = replicate(net(), training.mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = Loader(
        SAMPLES, Batches(SampleOrder(SIZE, seed=2), BATCH, micro_batch_size=2), training.data_shard, num_workers=0
    )
    checkpoints = Checkpoints(str(folder), policy=CheckpointPolicy(store=SaveInterval(steps=1))) if folder else None
    schedule = LRSchedule(base_lr=0.1, batch_size=BATCH, reference_batch_size=BATCH, warmup_samples=40, start_lr=0.0)
    settings = {"total_steps": STEPS, "checkpoints": checkpoints, "lr_schedule": schedule, "max_grad_norm": 0.5, **more}
    return model, Loop(training, model, optimizer, data, **settings)


def train(port: int, folder: Path | None, total_steps: int = STEPS) -> list[tuple[int, float]]:
    """Each step with its mean loss over all processes."""
    # The harness has made a group; the library makes its own.
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(port)
    losses = []
    with start() as training:
        model, loop = made(training, folder, total_steps=total_steps)
        for step in loop:
            for inputs, targets in step:
                step.backward((model(inputs) - targets).square().mean())
            assert step.loss is not None
            # Uneven shares count by their size.
            mine = step.loss * sum(part.weight for part in step._parts)
            dist.all_reduce(mine)
            losses.append((step.number, float(mine) / dist.get_world_size()))
    return losses


def launch(world_size: int, folder: Path, *words: Any) -> list[list[tuple[int, float]]]:
    return run(world_size, folder, train, free_port(), *words)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_as_by_hand(tmp_path: Path, world_size: int) -> None:
    expected = by_hand()
    for losses in launch(world_size, tmp_path, None):
        assert [step for step, _ in losses] == [*range(1, STEPS + 1)]
        assert [loss for _, loss in losses] == pytest.approx(expected, rel=1e-12)


def test_it_goes_on_at_another_number_of_processes(tmp_path: Path) -> None:
    expected = by_hand()
    first = launch(2, tmp_path, tmp_path / "kept", 5)[0]
    rest = launch(3, tmp_path, tmp_path / "kept")[0]
    assert [step for step, _ in first + rest] == [*range(1, STEPS + 1)]
    assert [loss for _, loss in first + rest] == pytest.approx(expected, rel=1e-12)
    assert launch(1, tmp_path, tmp_path / "kept") == [[]], "there is nothing left to do"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TRAINYARD_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)


def careless(step: Step, model: nn.Module) -> None:
    """Calls backward for one micro-batch alone."""
    for inputs, targets in step:
        step.backward((model(inputs) - targets).square().mean())
        break


def each_sample(step: Step, model: nn.Module) -> None:
    """Forgets the mean."""
    for inputs, targets in step:
        step.backward((model(inputs) - targets).square())


def go(loop: Loop, body: Callable[[Step, nn.Module], None], model: nn.Module) -> None:
    for step in loop:
        body(step, model)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (careless, RuntimeError, "step 1 has 5 micro-batches, and gradients of 1: iterate over the step"),
        (each_sample, ValueError, r"one number, and has shape \(2, 1\)"),
    ],
)
def test_bodies_that_are_wrong(body: Callable[[Step, nn.Module], None], kind: type[Exception], message: str) -> None:
    with start() as training:
        model, loop = made(training, None)
        with pytest.raises(kind, match=message):
            go(loop, body, model)
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"total_steps": 0}, "total_steps must be from 1 on"),
        ({"extra_state": {"train_state": 1}}, "extra_state has train_state, which the loop saves itself"),
    ],
)
def test_what_does_not_go_together(wrong: dict[str, Any], message: str) -> None:
    with start() as training, pytest.raises(ValueError, match=message):
        made(training, None, **wrong)


@pytest.mark.usefixtures("alone")
def test_best_checkpoints_are_kept_by_given_numbers(tmp_path: Path) -> None:
    with start() as training:
        plan = CheckpointPolicy(keep=Retention(best=1, metric="accuracy"))
        with pytest.raises(ValueError, match="no metric is reported: pass checkpoint_metrics"):
            made(training, None, checkpoints=Checkpoints(str(tmp_path), policy=plan))


@pytest.mark.usefixtures("alone")
def test_what_is_saved_is_reported(tmp_path: Path) -> None:
    with start() as training:
        model, loop = made(training, tmp_path, total_steps=3)
        for step in loop:
            for inputs, targets in step:
                step.backward((model(inputs) - targets).square().mean())
        known = loop.monitor.snapshot()
    assert known.checkpoint_step == 3
    assert known.checkpoint_seconds is not None
    assert 0 <= known.checkpoint_seconds < 60


@pytest.mark.usefixtures("alone")
def test_in_16_bits_on_a_cpu() -> None:
    with start() as training:
        model = replicate(nn.Linear(3, 1), training.mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        samples = [(inputs.float(), targets.float()) for inputs, targets in SAMPLES]
        data = Loader(
            samples, Batches(SampleOrder(SIZE), BATCH, micro_batch_size=BATCH), training.data_shard, num_workers=0
        )
        kinds = set()
        for step in Loop(training, model, optimizer, data, total_steps=2, precision=Precision("bf16", "cpu")):
            for inputs, targets in step:
                answers = model(inputs)
                kinds.add(answers.dtype)
                step.backward((answers - targets).square().mean())
        assert kinds == {torch.bfloat16}
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.usefixtures("alone")
def test_fp16_is_not_scaled_over_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    with start() as training:
        # As if there were two.
        monkeypatch.setattr(module, "size", lambda _, dimension: 2 if dimension == "pipeline" else 1)
        with pytest.raises(ValueError, match="pipeline stages check their gradients separately: use bf16"):
            made(training, None, precision=Precision("fp16", "cpu"))


PROGRAM = """
import sys, time, torch
from trainyard_torch import *
with start() as training:
    model = replicate(torch.nn.Linear(3, 1), training.mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Loader([torch.ones(3)] * 8, Batches(SampleOrder(8), 4, micro_batch_size=4), training.data_shard)
    for step in Loop(training, model, optimizer, data, total_steps=100000, checkpoints=Checkpoints(sys.argv[0] + ".kept")):
        for inputs in step:
            step.backward(model(inputs).mean())
        time.sleep(0.01)
        if step.number == 5: print("five", flush=True)
"""


def test_who_is_asked_to_end_has_saved(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with started(tmp_path / "program.py", 2) as ranks:
        for each in ranks:
            assert each.stdout
            assert each.stdout.readline() == "five\n"
        ranks[0].terminate()
        message = [each.communicate(timeout=60) for each in ranks]
        assert [each.returncode for each in ranks] == [90, 90], message
    latest = (tmp_path / "program.py.kept/LATEST").read_text()
    assert int(latest[5:17]) > 5


@pytest.mark.usefixtures("alone")
def test_a_step_looks_up_nothing_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mesh takes a tenth of a millisecond for each question. So does a traceback, which torch makes when it seeds devices that are not there."""
    asked: list[str] = []

    def noted(what: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            asked.append(what)
            return act(*words, **more)

        return call

    with start() as training:
        model, loop = made(training, None)
        for step in loop:
            for inputs, targets in step:
                step.backward((model(inputs) - targets).square().mean())
            if step.number == 1:
                monkeypatch.setattr(DeviceMesh, "__getitem__", noted("mesh", DeviceMesh.__getitem__))
                monkeypatch.setattr(traceback, "format_stack", noted("traceback", traceback.format_stack))
        monkeypatch.undo()
    assert asked == []


@pytest.mark.usefixtures("alone")
def test_single_process_exchanges_gradients_only_for_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with start() as training:
        plain = net()
        model = replicate(copy.deepcopy(plain), training.mesh)
        exchange, inputs = GradientSync(model), torch.randn(4, 3, dtype=torch.float64)
        with monkeypatch.context() as patch, exchange.enabled_if(enabled=True):
            patch.setattr(DistributedDataParallel, "forward", None)
            model(inputs).sum().backward()
        plain(inputs).sum().backward()
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert own.grad is not None
            assert torch.equal(own.grad, other.grad)
        compression = compress(model, "bf16")
        with exchange.enabled_if(enabled=False):
            model(inputs).sum().backward()
        assert compression.full_bytes == 0
        with exchange.enabled_if(enabled=True):
            model(inputs).sum().backward()
        assert compression.full_bytes > 0
