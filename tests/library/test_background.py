"""What happens beside the training while a checkpoint is written, and does not: a store that hangs, processes that part, memory that is full."""

from __future__ import annotations

import logging
import os
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from tests.library.support.processes import run
from tests.library.support.programs import started
from trainyard_torch import (
    CheckpointPolicy,
    Checkpoints,
    CheckpointSaveError,
    SaveInterval,
    Store,
    StoreError,
    Tier,
    throttle,
)
from trainyard_torch.checkpoint import checkpoints as module, outputs, policy, streams
from trainyard_torch.checkpoint.background_save import BackgroundSave
from trainyard_torch.checkpoint.memory import Memory
from trainyard_torch.checkpoint.timeouts import run_with_timeout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def messages() -> list[str]:
    """What the library says in this process from now on."""
    logged: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("trainyard_torch")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logged


def own_state() -> dict[str, Any]:
    rank = dist.get_rank() if dist.is_initialized() else 0
    return {f"rank{rank}": {"w": torch.full((3,), float(rank))}}


def never(*_: object) -> None:
    threading.Event().wait()


class Freed:
    """A function whose arguments are freed slowly, as a large state may be."""

    def __init__(self, freed: list[str]) -> None:
        self._freed = freed

    def __call__(self, *_: object) -> None:
        # Until no other thread has it.
        time.sleep(0.2)

    def __del__(self) -> None:
        time.sleep(0.2)
        self._freed.append(threading.current_thread().name)


def test_no_thread_frees_memory_after_its_answer() -> None:
    """torch 2.15 aborts a process whose thread frees a tensor while the interpreter exits."""
    freed: list[str] = []
    saving = BackgroundSave(Freed(freed), Store("memory://freed"), seconds=30, give_up_seconds=60)
    assert saving.outcome().wrong == ""
    assert freed == ["checkpoint"]
    run_with_timeout(30, Freed(freed))
    assert not [each for each in threading.enumerate() if each.name in {"checkpoint", "store"}]


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def hangs_once(folder: Path) -> tuple[list[str], int, int, float]:
    """The volume of rank 1 hangs while a file of step 2 is finished, and is well again."""
    logged, state = messages(), own_state()
    checkpoints = Checkpoints(
        str(folder), policy=CheckpointPolicy(operation_timeout_seconds=0.5, save_timeout_seconds=20)
    )
    checkpoints.load(state)
    checkpoints.save(1, state, wait=True)
    well = outputs.LocalOutput.finish
    if dist.get_rank() == 1:
        outputs.LocalOutput.finish = never  # type: ignore[method-assign,assignment]  # stands for a disk that hangs
    began = time.monotonic()
    checkpoints.save(2, state)
    pending = checkpoints._pending
    assert pending
    until(pending.done)
    took = time.monotonic() - began
    outputs.LocalOutput.finish = well  # type: ignore[method-assign]
    with pytest.raises(CheckpointSaveError, match="step 2 was abandoned, and is not tried again"):
        checkpoints.save(2, state, wait=True)
    checkpoints.save(2, state)
    checkpoints.save(3, state, wait=True)
    return logged, checkpoints.failures, checkpoints._store.unanswered, took


def test_a_store_that_hangs_costs_one_checkpoint(tmp_path: Path) -> None:
    first, second = run(2, tmp_path, hangs_once, tmp_path / "store")
    (warning,) = [text for text in first[0] if "not written" in text]
    assert warning.startswith("the checkpoint of step 2 was not written: rank 1: cannot write ")
    assert warning.endswith("/__1_0.distcp: no answer for 0.5 s; failures so far: 1; training continues")
    assert not [text for text in second[0] if "not written" in text]
    assert [(failures, silent) for _, failures, silent, _ in (first, second)] == [(1, 0), (1, 1)]
    assert max(first[3], second[3]) < 10
    assert (tmp_path / "store/LATEST").read_text() == "step-000000000003-000001\n"


def test_too_slow_store_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(str(tmp_path), policy=CheckpointPolicy(save_timeout_seconds=0.2))
    state = own_state()
    checkpoints.load(state)
    written = outputs.LocalOutput.write

    def slow(self: outputs.LocalOutput, content: bytes | memoryview) -> None:
        time.sleep(0.3)
        written(self, content)

    monkeypatch.setattr(outputs.LocalOutput, "write", slow)
    with pytest.raises(
        CheckpointSaveError, match=r"of step 1 was not written: .*it was not done after 0\.2 s, and is abandoned"
    ):
        checkpoints.save(1, state, wait=True)
    monkeypatch.undo()
    assert not (tmp_path / "LATEST").exists()
    checkpoints._policy = CheckpointPolicy()
    checkpoints.save(1, state, wait=True)
    assert (tmp_path / "LATEST").exists(), "all its operations have ended, so it is tried again"


def test_nothing_is_written_after_the_time_limit(tmp_path: Path) -> None:
    def over() -> None:
        raise StoreError("it is given up")

    files = streams.writer(Store(str(tmp_path)), "a", over).streams
    stream = files.create_stream("a/b", "wb")
    out = stream.__enter__()
    assert out.write(b"123") == 3, "torch's writer would tell an error of its own"
    with pytest.raises(StoreError, match="it is given up"):
        stream.__exit__(None, None, None)
    assert [*tmp_path.rglob("b*")] == []


def parts(folder: Path) -> tuple[list[str], bool, float]:
    """Rank 1 loses its connections amid a checkpoint; rank 0 waits for its word."""
    policy.SLACK_SECONDS = 0.5
    logged, state = messages(), own_state()
    checkpoints = Checkpoints(
        str(folder), policy=CheckpointPolicy(operation_timeout_seconds=0.5, save_timeout_seconds=2)
    )
    checkpoints.load(state)
    before = checkpoints._background

    def lost(_: object) -> None:
        raise RuntimeError("Connection reset by peer")

    if dist.get_rank() == 1:
        before.gather = lost  # type: ignore[method-assign,assignment]
    began = time.monotonic()
    checkpoints.save(1, state)
    checkpoints.save(2, state)
    took = time.monotonic() - began
    checkpoints.close()
    return logged, checkpoints._background is before, took


def test_processes_that_have_parted_find_each_other_again(tmp_path: Path) -> None:
    first, second = run(2, tmp_path, parts, tmp_path / "store")
    assert [kept for _, kept, _ in (first, second)] == [False, False], "the group is the old one"
    (warning,) = [text for text in first[0] if "not written" in text]
    assert "step 1 was not written: it did not finish within 3 s, and is abandoned; failures so far: 1" in warning
    assert 2.9 < first[2] < 12
    assert (tmp_path / "store/LATEST").read_text() == "step-000000000002-000001\n"


def no_memory(folder: Path) -> tuple[list[int], list[str]]:
    """Steps whose state was copied, where rank 1 has no place in memory until step 40, and what was said."""
    logged, state, copied = messages(), own_state(), []
    own = folder / f"shm{dist.get_rank()}"
    blocked = own / f"trainyard-checkpoints-{os.geteuid()}"
    own.mkdir()
    if dist.get_rank() == 1:
        blocked.write_text("a file where the folder is to be")
    plan = CheckpointPolicy(memory=SaveInterval(steps=1), store=SaveInterval(steps=1000), memory_dir=str(own))
    checkpoints = Checkpoints(str(folder / "store"), policy=plan)
    checkpoints.load(state)
    now, whole = 0, checkpoints._staging.stage

    def stage(each: Any) -> Any:
        copied.append(now)
        return whole(each)

    checkpoints._staging.stage = stage  # type: ignore[method-assign,assignment]
    for step in range(1, 67):
        if step == 40 and dist.get_rank() == 1:
            blocked.unlink()
        now = step
        if tier := checkpoints.should_save(step):
            checkpoints.save(step, state, tier=tier)
    checkpoints.close()
    return copied, logged


def test_failing_memory_is_skipped_for_growing_pauses(tmp_path: Path) -> None:
    (copied, logged), (others, quiet) = run(2, tmp_path, no_memory, tmp_path)
    assert copied == others == [1, 3, 7, 15, 31, 63, 64, 65, 66]
    warning = [text for text in logged if "in memory" in text]
    assert warning[0].startswith("checkpoints are not kept in memory for now: rank 1: cannot write ")
    assert warning[1:] == ["checkpoints are kept in memory again"]
    assert not [text for text in quiet if "in memory" in text]


def test_memory_that_cannot_be_cleared_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Memory, "keep", denied)
    plan = CheckpointPolicy(memory=SaveInterval(steps=1), memory_dir=str(tmp_path / "shm"))
    checkpoints = Checkpoints(str(tmp_path / "store"), policy=plan)
    checkpoints.load(own_state())
    assert [checkpoints.should_save(1), checkpoints.should_save(2)] == [None, Tier.MEMORY]
    assert "checkpoints are not kept in memory for now: rank 0: [Errno 13]" in caplog.text


def test_what_is_for_the_memory_alone_needs_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.load(own_state())
    with pytest.raises(ValueError, match=r"policy keeps no checkpoints in memory: set CheckpointPolicy\(memory"):
        checkpoints.save(1, own_state(), tier=Tier.MEMORY)


PROGRAM = """
import sys, threading, torch
from trainyard_torch import CheckpointPolicy, Checkpoints, start
from trainyard_torch.checkpoint import outputs
with start() as training:
    rank = training.process.rank
    checkpoints = Checkpoints(sys.argv[1], policy=CheckpointPolicy(operation_timeout_seconds=1))
    state = {f"rank{rank}": {"w": torch.zeros(3)}}
    checkpoints.load(state)
    if rank == 1:
        outputs.LocalOutput.finish = lambda _: threading.Event().wait()
    checkpoints.save(1, state, wait=True)
"""


def test_wait_for_the_last_checkpoint_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with started(tmp_path / "program.py", 2, str(tmp_path / "store")) as ranks:
        for each in ranks:
            _, errors = each.communicate(timeout=120)
            assert "CheckpointSaveError: the checkpoint of step 1 was not written: rank 1: cannot write " in errors
            assert "no answer for 1 s" in errors
            assert each.returncode == 97, errors


def clocks(folder: Path) -> list[int]:
    """The steps after which one is due by time, where each rank has a clock of its own."""
    now, steps = 0.0, []
    pass_by = [10.0, 0.001, 5000.0][dist.get_rank()]
    throttle.MAX_SKIPPED_STEPS = 0  # the answer is asked for in each step, however short
    module.time = SimpleNamespace(monotonic=lambda: now, time=time.time)  # type: ignore[attr-defined,assignment]  # a module's import is replaced
    checkpoints = Checkpoints(str(folder), policy=CheckpointPolicy(store=SaveInterval(seconds=30)))
    state = own_state()
    checkpoints.load(state)
    for step in range(1, 18):
        now += pass_by
        if tier := checkpoints.should_save(step):
            steps.append(step)
            checkpoints.save(step, state, tier=tier)
            pending = checkpoints._pending
            assert pending
            until(pending.done)
    checkpoints.close()
    return steps


def test_ranks_with_different_clocks_agree_on_time(tmp_path: Path) -> None:
    assert run(3, tmp_path, clocks, tmp_path / "store") == [[4, 8, 12, 16]] * 3


def test_thread_uses_the_device_of_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[int, str]] = []
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.load(own_state())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: chosen.append((device, threading.current_thread().name))
    )
    checkpoints.save(1, own_state(), wait=True)
    assert chosen == [(3, "checkpoint")]


def test_torchs_writer_opens_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> None:
        raise AssertionError("a GPU is opened to copy what is in the host's memory")

    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.load(own_state())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", opened)
    checkpoints.save(1, own_state(), wait=True)


@pytest.mark.gpu(count=2)
def test_thread_uses_the_second_of_two_gpus(tmp_path: Path) -> None:
    torch.cuda.set_device(1)
    torch.zeros(1, device="cuda")
    found: list[int] = []
    saving = BackgroundSave(
        lambda _: found.append(torch.cuda.current_device()), Store(str(tmp_path)), seconds=20, give_up_seconds=20
    )
    assert not saving.outcome().wrong
    assert found == [1]
