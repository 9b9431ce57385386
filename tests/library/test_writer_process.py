"""Checkpoints that a process of its own writes: the same files, the same errors, and an end with the training's process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from typing_extensions import override

from tests.library.support.processes import run
from tests.library.support.programs import started
from trainyard_torch import CheckpointPolicy, Checkpoints, CheckpointSaveError, SaveInterval, StoreError, Tier
from trainyard_torch.checkpoint import writer_process
from trainyard_torch.checkpoint.staging import StagingBuffer
from trainyard_torch.checkpoint.store import NoAnswerError
from trainyard_torch.checkpoint.writer_process import WriterProcess

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

BY_PROCESS = CheckpointPolicy(process=True)


def state(factor: float = 1.0) -> dict[str, Any]:
    """One of each kind of value."""
    values = {
        "plain": torch.arange(100_000.0) * factor,
        "transposed": (torch.arange(6.0).reshape(2, 3) * factor).t(),
        "half": torch.full((5,), factor, dtype=torch.bfloat16),
        "scalar": torch.tensor(factor, dtype=torch.float64),
        "empty": torch.zeros(0, 4),
        "flags": torch.tensor([factor > 1, True]),
    }
    return {"model": values, "other": {"step": int(factor), "text": "text", "rates": [factor, 0.5]}}


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(value, right[name]) for name, value in left.items())
    return bool(left == right)


def check() -> None:
    """The checkpoint may continue."""


def child(checkpoints: Checkpoints) -> subprocess.Popen[bytes]:
    assert checkpoints._process
    assert checkpoints._process._process
    return checkpoints._process._process


def ends(pid: int) -> bool:
    """Whether a process that is no child of ours ends soon."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with suppress(FileNotFoundError):
            if "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
                time.sleep(0.05)
                continue
        return True
    return False


@pytest.fixture
def process() -> Iterator[WriterProcess]:
    staging = StagingBuffer(shared=True)
    staging.stage(state())
    found = WriterProcess(staging)
    yield found
    found.close()


@pytest.mark.parametrize("tier", [Tier.STORE, Tier.MEMORY])
def test_other_process_writes_the_same(tmp_path: Path, tier: Tier) -> None:
    policy = CheckpointPolicy(process=True, memory=SaveInterval(steps=1), memory_dir=str(tmp_path / "memory"))
    checkpoints = Checkpoints(str(tmp_path / "store"), policy=policy)
    checkpoints.load(state())
    checkpoints.save(1, state(2.0), tier=tier, wait=True)
    first = child(checkpoints)
    checkpoints.save(2, state(3.0), tier=tier, wait=True)
    assert child(checkpoints) is first
    assert first.pid != os.getpid()
    found = state()
    manifest = Checkpoints(str(tmp_path / "store"), policy=policy).load(found)
    assert manifest
    assert manifest.step == 2
    assert equal(found, state(3.0))
    checkpoints.close()
    first.wait(30)


@pytest.mark.gpu
@pytest.mark.parametrize("tier", [Tier.STORE, Tier.MEMORY])
def test_other_process_writes_the_state_of_a_gpu(tmp_path: Path, tier: Tier) -> None:
    """It opens no GPU, and the training may change the state as soon as it is copied."""
    policy = CheckpointPolicy(process=True, memory=SaveInterval(steps=1), memory_dir=str(tmp_path / "memory"))
    checkpoints = Checkpoints(str(tmp_path / "store"), policy=policy)
    values = {"w": torch.zeros(1_000_000, device="cuda"), "t": torch.rand(3, 5, device="cuda").t()}
    checkpoints.load(values)
    for step in (1, 2):
        values["w"].fill_(step)
        checkpoints.save(step, values, tier=tier)
        values["w"].fill_(-1)
        checkpoints.wait()
    writer = child(checkpoints)
    opened = [str(each.readlink()) for each in Path(f"/proc/{writer.pid}/fd").iterdir()]
    assert not [path for path in opened if "nvidia" in path]
    found = {name: torch.zeros_like(value) for name, value in values.items()}
    manifest = Checkpoints(str(tmp_path / "store"), policy=policy).load(found)
    assert manifest
    assert (manifest.step, found["w"].unique().tolist()) == (2, [2])
    assert torch.equal(found["t"], values["t"])
    checkpoints.close()
    writer.wait(30)


def sharded(folder: Path) -> tuple[list[float], bool, str]:
    """Two ranks save a DTensor, and rank 1 loses its writer before the second checkpoint."""
    mesh = init_device_mesh("cpu", (2,))
    made = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    checkpoints = Checkpoints(str(folder), policy=BY_PROCESS)
    checkpoints.load({"w": made})
    checkpoints.save(1, {"w": made}, wait=True)
    asked, writer = threading.Event(), child(checkpoints)
    if dist.get_rank() == 1:
        os.kill(writer.pid, signal.SIGSTOP)
    pickled = writer_process._pickled

    def noted(value: object, staging: StagingBuffer) -> bytes:
        asked.set()
        return pickled(value, staging)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_process, "_pickled", noted)
        checkpoints.save(2, {"w": made})
        # A writer that is lost before it is asked is replaced, and costs nothing.
        assert asked.wait(60)
    if dist.get_rank() == 1:
        writer.kill()
    error = ""
    try:
        checkpoints.close()
    except CheckpointSaveError as wrong:
        error = str(wrong)
    checkpoints.save(3, {"w": made}, wait=True)
    found = {"w": distribute_tensor(torch.zeros(8), mesh, [Shard(0)])}
    manifest = Checkpoints(str(folder)).load(found)
    assert isinstance(found["w"], DTensor)
    return found["w"].full_tensor().tolist(), bool(manifest and manifest.step == 3), error


def test_killed_writer_costs_one_checkpoint(tmp_path: Path) -> None:
    for values, newest, error in run(2, tmp_path, sharded, tmp_path / "store"):
        assert values == [*map(float, range(8))]
        assert newest
        assert "the process that writes checkpoints ended by signal SIGKILL" in error


def test_errors_of_the_store_arrive(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path / "store"), policy=BY_PROCESS)
    checkpoints.load(state())
    (tmp_path / "store/step-000000000001-000001/__0_0.distcp").mkdir(parents=True)
    with pytest.raises(
        CheckpointSaveError, match=r"of step 1 was not written: .*cannot write .*__0_0.distcp: .*Is a directory"
    ):
        checkpoints.save(1, state(), wait=True)
    checkpoints.save(2, state(), wait=True)
    checkpoints.close()


def test_writer_that_hangs_is_killed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path / "store"), policy=BY_PROCESS)
    checkpoints.load(state())
    checkpoints.save(1, state(), wait=True)
    first = child(checkpoints)
    first.send_signal(signal.SIGSTOP)
    checkpoints._policy = CheckpointPolicy(process=True, save_timeout_seconds=1)
    with pytest.raises(CheckpointSaveError, match="it was not done after 1 s"):
        checkpoints.save(2, state(), wait=True)
    checkpoints._policy = BY_PROCESS
    assert first.wait(30) == -signal.SIGKILL
    checkpoints.save(3, state(), wait=True)
    checkpoints.close()


def fails(kind: type[Exception]) -> None:
    raise kind("a sentence")


class TwoArgumentsError(Exception):
    """Cannot be made again from its pickle."""

    def __init__(self, first: str, second: str = "") -> None:
        super().__init__()
        self.first = first + second

    @override
    def __reduce__(self) -> Any:
        return TwoArgumentsError, ()


@pytest.mark.parametrize(
    ("kind", "arrives"),
    [
        (StoreError, StoreError),
        (NoAnswerError, NoAnswerError),
        (ValueError, ValueError),
        (TwoArgumentsError, StoreError),
    ],
)
def test_exception_keeps_its_class(process: WriterProcess, kind: type[Exception], arrives: type[Exception]) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the class is compared below
        process.run(check, fails, kind)
    assert type(raised.value) is arrives


def surroundings() -> tuple[int, set[str], str | None]:
    return os.getpid(), {*os.environ}, os.environ.get("CUDA_VISIBLE_DEVICES")


def test_writer_is_no_rank(process: WriterProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TRAINYARD_RANK_RECORDS", "AWS_PROFILE"):
        monkeypatch.setenv(name, "1")
    pid, names, devices = process.run(check, surroundings)
    assert pid != os.getpid()
    assert names.isdisjoint({"RANK", "WORLD_SIZE", "TRAINYARD_RANK_RECORDS"})
    assert "AWS_PROFILE" in names, "the store needs its credentials"
    assert devices == ""


def test_signals_of_a_stop_spare_the_writer(process: WriterProcess) -> None:
    pid = process.run(check, os.getpid)
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    assert process.run(check, os.getpid) == pid


def test_missing_interpreter_is_a_sentence(process: WriterProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(StoreError, match="the process that writes checkpoints ended: it could not be started"):
        process.run(check, os.getpid)


def test_memory_of_one_process_is_refused() -> None:
    with pytest.raises(ValueError, match="memory://a is memory of this process: use a folder"):
        Checkpoints("memory://a", policy=BY_PROCESS)


PROGRAM = """
import os, sys, time, torch
from trainyard_torch import CheckpointPolicy, Checkpoints
checkpoints = Checkpoints(sys.argv[1], policy=CheckpointPolicy(process=True))
state = {"w": torch.ones(10)}
checkpoints.load(state)
checkpoints.save(1, state, wait=True)
if sys.argv[2] == "forks" and not os.fork():
    # Like a loader's process, which holds copies of all that was open.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    time.sleep(25)
    os._exit(0)
print(checkpoints._process._process.pid, flush=True)
if sys.argv[2] != "ends":
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["killed", "forks", "ends"])
def test_writer_ends_with_its_training(tmp_path: Path, how: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with started(program, 1, str(tmp_path / "store"), how) as (training,):
        assert training.stdout
        writer = int(training.stdout.readline())
        assert Path(f"/proc/{writer}").exists()
        if how == "ends":
            assert training.wait(30) == 0
        else:
            training.kill()
            training.wait(30)
        assert ends(writer)
