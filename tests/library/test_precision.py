"""Number formats on a CPU: what they do to the numbers, and what an overflow does. A GPU's own are skipped where there is none."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tests.library.support.processes import run
from trainyard_torch import Parallelism, clip_grad_norm_, group_by_mesh, shard, tensor_parallel
from trainyard_torch.precision import Precision

GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def trained(precision: Precision, model: nn.Module, steps: int = 20) -> list[bool]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    done = []
    for step in range(steps):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        with precision.autocast():
            out = model(x)
            loss = nn.functional.mse_loss(out.float(), x.sum(1, keepdim=True))
        assert out.dtype == precision.dtype
        precision.backward(loss)
        precision.unscale(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        done.append(precision.step(optimizer))
    return done


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


@pytest.mark.parametrize(("name", "far"), [("bf16", 3e-2), ("fp16", 3e-3)])
def test_nearly_what_fp32_does(name: str, far: float) -> None:
    full, half = network(), network()
    assert all(trained(Precision("fp32", "cpu"), full))
    assert all(trained(Precision(name, "cpu", init_scale=1024.0), half))
    most = max(
        float((one - other).detach().abs().max())
        for one, other in zip(full.parameters(), half.parameters(), strict=True)
    )
    assert 0 < most < far
    assert {value.dtype for value in half.parameters()} == {torch.float32}


def test_an_overflow_is_skipped_and_reported() -> None:
    model = network()
    precision = Precision("fp16", "cpu", init_scale=2.0**40)
    before = model[0].weight.detach().clone()  # type: ignore[index, union-attr]
    assert trained(precision, model, 1) == [False]
    assert torch.equal(before, model[0].weight)  # type: ignore[index, arg-type]
    assert precision.scale == 2.0**39
    done = trained(precision, model, 40)
    assert done == sorted(done), "once the scale fits, no step is left out"
    assert done[-1]


def test_what_is_nan_by_itself_ends_it() -> None:
    model = nn.Linear(8, 1)
    precision = Precision("fp16", "cpu", init_scale=2.0**-20)
    nn.init.constant_(model.weight, math.nan)
    with pytest.raises(FloatingPointError, match="the loss is NaN or infinite by itself"):
        trained(precision, model, 10)


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning", "ignore:TypedStorage is deprecated:UserWarning")
def test_the_scale_goes_on_after_a_restart(tmp_path: Path) -> None:
    model = network()
    precision = Precision("fp16", "cpu", init_scale=64.0, growth_interval=3)
    trained(precision, model, 4)
    assert precision.scale == 128, "it has grown after three good steps"
    dcp.save({"precision": precision}, checkpoint_id=str(tmp_path))
    resumed = Precision("fp16", "cpu", growth_interval=3)
    dcp.load({"precision": resumed}, checkpoint_id=str(tmp_path))
    assert resumed.scale == 128
    trained(resumed, model, 2)
    assert resumed.scale == 256, "the fourth step counts for the next growth"
    Precision("bf16", "cpu").load_state_dict(resumed.state_dict())
    assert Precision("bf16", "cpu").state_dict() == {}


def test_fp32_is_fp32() -> None:
    torch.set_float32_matmul_precision("medium")
    Precision("fp32", "cpu")
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    Precision("bf16", "cpu")
    assert torch.get_float32_matmul_precision() == "high"


def test_the_device_decides() -> None:
    with pytest.raises(ValueError, match="tf32 is of NVIDIA GPUs, and this device is a CPU"):
        Precision("tf32", "cpu")
    with pytest.raises(ValueError, match="scale and growth_interval must be positive"):
        Precision("fp16", "cpu", init_scale=0)
    if not GPU:
        with pytest.raises(ValueError, match="device is cuda, and this process sees no GPU"):
            Precision("bf16", "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16"])
def test_on_a_gpu(name: str) -> None:
    model = network().cuda()
    x = torch.randn(64, 8, device="cuda")
    precision = Precision(name, "cuda", init_scale=64.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with precision.autocast():
        assert model(x).dtype == precision.dtype
        loss = model(x).float().square().mean()
    precision.backward(loss)
    assert precision.step(optimizer)


SPLIT = {
    "0": ColwiseParallel(output_layouts=Replicate()),
    "2": RowwiseParallel(input_layouts=Replicate()),
}


class Fixed(nn.Module):
    """Plain parameters beside those that are split."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        # The bias of what is split by rows is whole everywhere, and the first of all.
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def over_tensors(kind: str, overflow: bool) -> tuple[list[bool], list[float], float]:  # noqa: FBT001 - it is a case
    """Ten steps in fp16 on two processes; in the fourth, one part of one gradient is infinite on rank 1 alone."""
    mesh = Parallelism(tensor=1 if kind == "fsdp" else 2).mesh(dist.get_world_size(), "cpu")
    model = Fixed()
    if kind != "fsdp":
        tensor_parallel(model.layers, mesh, SPLIT)
    if kind != "tensor":
        shard(model, mesh, blocks=[])
    groups = group_by_mesh(sorted(model.parameters(), key=lambda each: each.dim()))
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=0.01)
    precision = Precision("fp16", "cpu", init_scale=1024.0)
    done, losses = [], []
    for step in range(10):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        with precision.autocast():
            loss = nn.functional.mse_loss(model(x).float(), x.sum(1, keepdim=True))
        precision.backward(loss)
        if overflow and step == 3 and dist.get_rank() == 1:
            gradient = model.layers[0].weight.grad
            gradient.to_local().view(-1)[0] = math.inf
        precision.unscale(optimizer)
        clip_grad_norm_(model.parameters(), mesh, 1.0)
        done.append(precision.step(optimizer))
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return done, losses, precision.scale


def each_over_tensors() -> list[Any]:
    return [over_tensors(kind, overflow) for kind in ("tensor", "fsdp", "both") for overflow in (False, True)]


def test_fp16_over_split_tensors(tmp_path: Path) -> None:
    model, precision = Fixed(), Precision("fp16", "cpu", init_scale=1024.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    wanted = []
    for step in range(10):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        with precision.autocast():
            loss = nn.functional.mse_loss(model(x).float(), x.sum(1, keepdim=True))
        precision.backward(loss)
        precision.unscale(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert precision.step(optimizer)
        optimizer.zero_grad()
        wanted.append(float(loss.detach()))
    for found in run(2, tmp_path, each_over_tensors):
        for number, (done, losses, scale) in enumerate(found):
            if number % 2 == 0:
                assert (all(done), scale) == (True, 1024.0)
                assert losses == pytest.approx(wanted, rel=2e-2)
            else:
                assert done == [step != 3 for step in range(10)], "on rank 0 too"
                assert scale == 512.0


def test_unscaling_twice_is_reported() -> None:
    model, precision = network(), Precision("fp16", "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    precision.backward(model(torch.ones(1, 8)).sum())
    precision.unscale(optimizer)
    with pytest.raises(RuntimeError, match="was called already in this step"):
        precision.unscale(optimizer)
    assert precision.step(optimizer)
    assert precision.step(optimizer), "gradients are still there: that is a step of its own"


def test_a_step_without_a_gradient_is_one() -> None:
    model, precision = network(), Precision("fp16", "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert precision.step(optimizer)
    assert precision.scale == 65536
