"""How the state is copied before a checkpoint is written: into the same memory each time, and into another where that is still in use."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.library.support.processes import run
from trainyard_torch import CheckpointPolicy, Checkpoints, CheckpointSaveError, SaveInterval, Tier
from trainyard_torch.checkpoint import outputs, policy, staging
from trainyard_torch.checkpoint.staging import StagingBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainyard_torch.checkpoint.manifest import Manifest

OTHERS = [
    pytest.param(torch.arange(6).reshape(2, 3).t(), id="transposed"),
    pytest.param(torch.arange(6.0)[::2], id="with gaps"),
    pytest.param(torch.tensor(3.5, dtype=torch.float64), id="scalar"),
    pytest.param(torch.zeros(0, 4), id="empty"),
    pytest.param(torch.tensor([True, False, True]), id="bool"),
    pytest.param(torch.tensor([1 + 2j]), id="complex"),
    pytest.param(torch.ones(5, dtype=torch.bfloat16), id="bfloat16"),
    pytest.param(torch.eye(3).to_sparse(), id="sparse"),
    pytest.param(torch.nn.Parameter(torch.ones(2, 2)), id="parameter"),
    pytest.param(torch.ones(3).expand(4, 3), id="expanded"),
]


def state(value: float, width: int = 1000) -> dict[str, Any]:
    return {"model": {"w": torch.full((width,), value), "b": torch.full((3,), -value)}, "steps": [value, "text"]}


@pytest.mark.parametrize("tensor", OTHERS)
def test_copy_equals_and_is_independent(tensor: torch.Tensor) -> None:
    copied = StagingBuffer().stage({"first": torch.ones(3), "it": tensor})["it"]
    assert (copied.dtype, copied.shape, copied.requires_grad) == (tensor.dtype, tensor.shape, False)
    assert torch.equal(copied.to_dense(), tensor.detach().to_dense())
    if copied.layout is torch.strided:
        assert copied.stride() == tensor.detach().clone().stride()
        assert copied.untyped_storage().size() == copied.numel() * copied.element_size(), "torch would write all of it"
        before = tensor.detach().clone()
        copied.fill_(0)
        assert torch.equal(tensor.detach(), before)


def test_second_copy_allocates_nothing() -> None:
    buffer = StagingBuffer()
    first = buffer.stage(state(1.0))
    assert torch.equal(first["model"]["w"], torch.full((1000,), 1.0))
    place = first["model"]["w"].data_ptr()
    buffer.release()
    second = buffer.stage(state(2.0))
    assert (buffer.allocations, second["model"]["w"].data_ptr()) == (1, place)
    assert torch.equal(second["model"]["w"], torch.full((1000,), 2.0))
    assert torch.equal(second["model"]["b"], torch.full((3,), -2.0))
    assert second["steps"] == [2.0, "text"]


def test_other_shapes_are_copied_correctly() -> None:
    buffer = StagingBuffer()
    for width, allocations in ((1000, 1), (900, 1), (5000, 2), (4000, 2), (10, 3)):
        copied = buffer.stage(state(float(width), width))
        assert torch.equal(copied["model"]["w"], torch.full((width,), float(width)))
        assert torch.equal(copied["model"]["b"], torch.full((3,), -float(width)))
        assert buffer.allocations == allocations
        buffer.release()


def test_copy_in_use_is_not_overwritten() -> None:
    buffer = StagingBuffer()
    first = buffer.stage(state(1.0))
    with pytest.raises(RuntimeError, match=r"still in use: call release\(\)"):
        buffer.stage(state(2.0))
    assert torch.equal(first["model"]["w"], torch.full((1000,), 1.0))
    del buffer
    assert torch.equal(first["model"]["w"], torch.full((1000,), 1.0)), "the copy keeps its memory"


def test_failed_copy_leaves_the_buffer_usable() -> None:
    class Uncopyable:
        def __deepcopy__(self, memo: object) -> None:
            raise TypeError("cannot be copied")

    buffer = StagingBuffer()
    with pytest.raises(TypeError, match="cannot be copied"):
        buffer.stage({**state(1.0), "odd": Uncopyable()})
    assert torch.equal(buffer.stage(state(2.0))["model"]["w"], torch.full((1000,), 2.0))


def parts() -> list[bool]:
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(12.0).reshape(4, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    buffer = StagingBuffer()
    copied = buffer.stage({"w": sharded})["w"]
    local = copied.to_local()
    return [
        isinstance(copied, DTensor),
        copied.placements == sharded.placements and copied.shape == whole.shape,
        torch.equal(copied.full_tensor(), whole),
        local.data_ptr() != sharded.to_local().data_ptr(),
        local.untyped_storage().size() == 4 * 6,
    ]


def test_dtensor_is_copied_with_its_layout(tmp_path: Path) -> None:
    assert run(2, tmp_path, parts) == [[True] * 5] * 2


def test_saves_use_the_same_memory(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    current = {"m": {"w": torch.zeros(1000)}}
    checkpoints.load(current)
    for step in range(1, 5):
        current["m"]["w"].fill_(step)
        checkpoints.save(step, current)
        current["m"]["w"].fill_(-1.0)
    checkpoints.close()
    assert checkpoints._staging.allocations == 1
    assert Checkpoints(str(tmp_path)).load(current)
    assert torch.equal(current["m"]["w"], torch.full((1000,), 4.0))


def test_failed_save_frees_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    current = {"m": {"w": torch.ones(1000)}}
    checkpoints.load(current)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(outputs.LocalOutput, "write", full)
        with pytest.raises(CheckpointSaveError, match="No space left"):
            checkpoints.save(1, current, wait=True)
    checkpoints.save(2, current, wait=True)
    assert checkpoints._staging.allocations == 1


def test_abandoned_thread_keeps_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store hangs with step 1, which is abandoned; step 2 must not change what step 1 still writes."""
    monkeypatch.setattr(policy, "SLACK_SECONDS", 0.1)
    plan = CheckpointPolicy(
        memory=SaveInterval(steps=1),
        memory_dir=str(tmp_path / "shm"),
        operation_timeout_seconds=0.1,
        save_timeout_seconds=0.1,
    )
    checkpoints = Checkpoints(str(tmp_path / "store"), policy=plan)
    current = {"m": {"w": torch.ones(1000)}}
    checkpoints.load(current)
    memory = checkpoints._memory
    assert memory
    seen: dict[int, Any] = {}
    go_on, ended = threading.Event(), threading.Event()

    def hangs(manifest: Manifest, _: str, held: Any, __: object) -> None:
        go_on.wait(20)
        seen[manifest.step] = held["m"]["w"].clone()
        if manifest.step == 1:
            ended.set()

    with monkeypatch.context() as patch:
        patch.setattr(memory, "write", hangs)
        checkpoints.save(1, current, tier=Tier.MEMORY)
        checkpoints.wait()
        current["m"]["w"].fill_(2.0)
        checkpoints.save(2, current)
        go_on.set()
        assert ended.wait(20)
    assert torch.equal(seen[1], torch.ones(1000))


class FakeGpu:
    """Records what is asked of a GPU, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pinning: int = 0) -> None:
        self.asked: list[str] = []
        self.registered: dict[int, int] = {}
        self._pinning = pinning
        monkeypatch.setattr(staging, "_on_gpu", lambda tensor: tensor.dtype is torch.float32)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "training")
        monkeypatch.setattr(torch.cuda, "Stream", lambda _: self)
        monkeypatch.setattr(torch.cuda, "stream", self.used)
        copied = torch.Tensor.copy_

        def copy(host: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002 - torch's
            self.asked.append(f"copy {source.dtype} {'queued' if non_blocking else 'waited for'}")
            return copied(host, source)

        monkeypatch.setattr(torch.Tensor, "copy_", copy)

    def cudaHostRegister(self, address: int, size: int, _: int) -> int:  # noqa: N802 - CUDA's name
        if not self._pinning:
            self.registered[address] = size
        return self._pinning

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802 - CUDA's name
        del self.registered[address]

    def wait_stream(self, other: str) -> None:
        self.asked.append(f"wait for {other}")

    def synchronize(self) -> None:
        self.asked.append("synchronize")

    @contextmanager
    def used(self, _: object) -> Iterator[None]:
        yield
        self.asked.append("leave the stream")


def test_gpu_copies_are_queued_into_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, buffer = FakeGpu(monkeypatch), StagingBuffer()
    copied = buffer.stage({"w": torch.ones(100), "position": torch.tensor([7])})
    assert gpu.asked == [
        "wait for training",
        "copy torch.float32 queued",
        "copy torch.int64 waited for",
        "leave the stream",
        "synchronize",
    ]
    assert [*gpu.registered.values()] == [buffer.size]
    buffer.release()
    again = buffer.stage({"w": torch.ones(100), "position": torch.tensor([8])})
    assert (len(gpu.registered), buffer.allocations) == (1, 1)
    del copied, again, buffer
    assert gpu.registered == {}, "the memory is unlocked before it is freed"


def test_gpu_copies_are_waited_for_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uncopyable:
        def __deepcopy__(self, memo: object) -> None:
            raise TypeError("cannot be copied")

    gpu = FakeGpu(monkeypatch)
    with pytest.raises(TypeError):
        StagingBuffer().stage({"w": torch.ones(100), "odd": Uncopyable()})
    assert gpu.asked[-1] == "synchronize"


def test_memory_that_cannot_be_pinned_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu, buffer = FakeGpu(monkeypatch, pinning=2), StagingBuffer()
    for value in (1.0, 2.0):
        assert torch.equal(buffer.stage({"w": torch.full((100,), value)})["w"], torch.full((100,), value))
        buffer.release()
    assert buffer.allocations == 1
    assert "copy torch.float32 waited for" in gpu.asked
    assert len([text for text in caplog.messages if "cannot be pinned: CUDA error 2" in text]) == 1


@pytest.mark.gpu(count=1)
@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_gpu_state_is_copied_into_pinned_memory(*, shared: bool) -> None:
    buffer = StagingBuffer(shared=shared)
    source = {"w": torch.arange(1e6, device="cuda"), "t": torch.rand(3, 5, device="cuda").t()}
    for _ in range(2):
        copied = buffer.stage(source)
        assert all(each.is_pinned() for each in copied.values())
        assert all(torch.equal(copied[name], source[name].cpu()) for name in source)
        buffer.release()
    assert buffer.allocations == 1
