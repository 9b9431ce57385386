"""An estimate of memory is what a rank really takes, and needs no rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from typing_extensions import override

from tests.library.support.equality import PLAN, Layer, mean_loss, transformer
from tests.library.support.processes import run
from trainyard_torch import Parallelism, checkpoint_activations, shard, tensor_parallel
from trainyard_torch.memory_estimate import MemoryEstimate, estimate_memory

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh

WIDE, DEEP, SAMPLES = 256, 8, 1024
TOLERANCE = 0.1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDE, 2 * WIDE), nn.Linear(2 * WIDE, WIDE)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def build(_: DeviceMesh | None = None, *, checkpointed: bool = False) -> nn.Sequential:
    made = nn.Sequential(*(Block() for _ in range(DEEP)))
    if checkpointed:
        checkpoint_activations(list(made))
    return made


def checkpointed(mesh: DeviceMesh) -> nn.Module:
    return build(mesh, checkpointed=True)


def loss(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(SAMPLES, WIDE)).square().mean()


def most_allocated(model: nn.Module, trace: Path) -> int:
    """Train two steps, and return the most bytes that torch's allocator counted, without those from before."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    before = sum(each.nbytes for each in model.parameters())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as made:
        # The second step begins with gradients, as all micro-batches but the first do.
        for _ in range(2):
            loss(model).backward()
            optimizer.step()
    made.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    changes = [each["args"] for each in events if each["name"] == "[memory]"]
    first = changes[0]["Total Allocated"] - changes[0]["Bytes"]
    return before + max(each["Total Allocated"] for each in changes) - int(first)


@pytest.mark.parametrize("kind", ["plain", "checkpointed"])
def test_estimate_is_what_torch_allocates(kind: str, tmp_path: Path) -> None:
    estimate = estimate_memory(checkpointed if kind == "checkpointed" else build, loss, world_size=1)
    found = most_allocated(build(checkpointed=kind == "checkpointed"), tmp_path / "trace.json")
    assert estimate.total == pytest.approx(found, rel=TOLERANCE)


def test_checkpointing_needs_fewer_activations() -> None:
    plain, less = (estimate_memory(made, loss, world_size=8) for made in (build, checkpointed))
    # The inputs of all blocks, and one block that is computed again.
    assert less.activations < 0.6 * plain.activations
    assert (less.parameters, less.optimizer_states) == (plain.parameters, plain.optimizer_states)
    assert not dist.is_initialized()


def sharded(world_size: int) -> tuple[int, int, int]:
    """What a rank has after a step: parameters, gradients, states of the optimizer."""
    mesh = Parallelism(tensor=2).mesh(world_size, "cpu")
    model = tensor_parallel(transformer(), mesh, PLAN)
    shard(model, mesh, blocks=blocks(model))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    words = torch.arange(24).reshape(4, 6) % 11
    mean_loss(model(words), words).backward()
    optimizer.step()

    def total(values: list[torch.Tensor]) -> int:
        return sum((each.to_local() if isinstance(each, DTensor) else each).nbytes for each in values)

    parameters = list(model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    return total(parameters), total([each.grad for each in parameters if each.grad is not None]), total(states)


def blocks(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Layer)]


def split(mesh: DeviceMesh) -> nn.Module:
    return tensor_parallel(transformer(), mesh, PLAN)


def words_loss(model: nn.Module) -> torch.Tensor:
    words = torch.zeros(4, 6, dtype=torch.int64)
    return mean_loss(model(words), words)


def test_shards_are_those_of_a_rank(tmp_path: Path) -> None:
    estimate = estimate_memory(split, words_loss, world_size=4, parallelism=Parallelism(tensor=2), blocks=blocks)
    first = run(4, tmp_path, sharded, 4)[0]
    assert (estimate.parameters, estimate.gradients, estimate.optimizer_states) == first


def test_gathered_blocks_count() -> None:
    one = estimate_memory(build, loss, world_size=8, blocks=list)
    block = 4 * sum(each.numel() for each in Block().parameters())
    assert one.gathered == 3 * block
    assert one.parameters == DEEP * block // 8
    assert one.total == one.parameters + one.gradients + one.optimizer_states + one.activations + one.gathered
    large = estimate_memory(build, loss, world_size=512, blocks=list)
    assert isinstance(large, MemoryEstimate)
    assert large.parameters < one.parameters / 32


def grounded(_: DeviceMesh) -> nn.Module:
    return nn.Linear(2, 2, device="cpu")


def test_what_cannot_be_estimated() -> None:
    with pytest.raises(ValueError, match=r"build made weight on cpu: leave the device to estimate_memory"):
        estimate_memory(grounded, loss, world_size=2)
    with pytest.raises(ValueError, match=r"3 processes cannot be laid out as tensor 2"):
        estimate_memory(build, loss, world_size=3, parallelism=Parallelism(tensor=2))
    with pytest.raises(ValueError, match=r"world_size must be a number of processes from 1 on, not 0"):
        estimate_memory(build, loss, world_size=0)
    assert not dist.is_initialized()


def joined() -> None:
    with pytest.raises(ValueError, match="call it before start"):
        estimate_memory(build, loss, world_size=2)


def test_a_group_that_exists_stays(tmp_path: Path) -> None:
    run(1, tmp_path, joined)
