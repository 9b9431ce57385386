"""Layers in fp8: which are converted, what is refused and warned of; and parameters that FSDP gathers in 16 bits."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.library.support.processes import run
from trainyard_torch import shard
from trainyard_torch.float8 import Scaling, with_float8
from trainyard_torch.mesh import Parallelism
from trainyard_torch.precision import Precision

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Decoder(nn.Module):
    """Two blocks, one of which has a side that fp8 cannot have, and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 20), nn.Linear(20, 16), nn.Linear(16, 16)])
        self.output = nn.Linear(16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.output(x)
        return result


class Torchao:
    """torchao as the library calls it: what it was asked for. Without a GPU, the real one cannot multiply."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recipes: list[str] = []
        self.converted: list[str] = []
        module = ModuleType("torchao.float8")
        module.Float8LinearConfig = self  # type: ignore[attr-defined]
        module.convert_to_float8_training = self.convert  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
        monkeypatch.setitem(sys.modules, "torchao.float8", module)

    def from_recipe_name(self, name: str) -> str:
        return name

    def convert(
        self, model: nn.Module, *, module_filter_fn: Callable[[nn.Module, str], bool], config: str
    ) -> nn.Module:
        self.recipes.append(config)
        self.converted = [
            name
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear) and module_filter_fn(layer, name)
        ]
        return model


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> Torchao:
    return Torchao(monkeypatch)


@pytest.mark.parametrize(
    ("skip", "converted"),
    [
        (None, ["blocks.0", "blocks.3"]),
        ((), ["blocks.0", "blocks.3", "output"]),
        (("output", "blocks.0"), ["blocks.3"]),
        (("blocks.*",), ["output"]),
    ],
)
def test_the_output_layer_stays_in_bf16(skip: tuple[str, ...] | None, converted: list[str], torchao: Torchao) -> None:
    with_float8(Decoder(), skip=skip)
    assert torchao.converted == converted


def test_rows_may_have_scales_of_their_own(torchao: Torchao) -> None:
    with_float8(Decoder())
    with_float8(Decoder(), scaling="rowwise")
    assert torchao.recipes == ["tensorwise", "rowwise"]


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        (nn.Linear(8, 16), {}, "sides are multiples of 16, and the model has none but those to skip"),
        (nn.Linear(16, 32), {}, "none but those to skip"),
        (Decoder(), {"skip": ("head",)}, "no linear layer is named 'head'; there are blocks.0, blocks.1"),
        (Decoder(), {"scaling": "blockwise"}, "scaling must be one of tensorwise, rowwise, not 'blockwise'"),
    ],
)
@pytest.mark.usefixtures("torchao")
def test_fp8_has_its_conditions(model: nn.Module, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_float8(model, **words)


def test_fp8_needs_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(ValueError, match="pip install torchao"):
        with_float8(Decoder())
    model = Decoder()
    assert Precision("bf16", "cpu").convert(model) is model


def plain(model: nn.Module) -> nn.Module:
    return model


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def compiled_block(model: nn.Module) -> nn.Module:
    model.get_submodule("blocks.0").compile(backend="eager")
    return model


def wrapped(model: nn.Module) -> nn.Module:
    result: nn.Module = torch.compile(model, backend="eager")
    return result


@pytest.mark.usefixtures("torchao")
@pytest.mark.parametrize(
    ("compiled", "warnings"), [(plain, 1), (compiled_in_place, 0), (compiled_block, 0), (wrapped, 0)]
)
def test_fp8_without_compilation_is_warned_of(
    compiled: Callable[[nn.Module], nn.Module], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = compiled(with_float8(Decoder()))
    for _ in range(2):
        model(torch.ones(1, 16))
    own = [record.message for record in caplog.records if record.name == "trainyard_torch.float8"]
    assert ["slower than bf16" in message for message in own] == [True] * warnings


@pytest.mark.gpu(capability=(8, 9))
@pytest.mark.skipif(not find_spec("torchao"), reason="needs torchao, which is not installed")
@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_fp8_on_a_gpu(scaling: Scaling) -> None:
    if scaling == "rowwise" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("scales of rows need compute capability 9.0")
    layers = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16)).cuda()
    model = Precision("fp8", "cuda").convert(layers, scaling=scaling)
    assert type(model[0]).__name__ == "Float8Linear"  # type: ignore[index]
    assert type(model[1]) is nn.Linear  # type: ignore[index]
    with Precision("fp8", "cuda").autocast():
        model(torch.randn(16, 64, device="cuda")).sum().backward()
    assert all(torch.isfinite(value.grad).all() for value in model.parameters() if value.grad is not None)


def gathered() -> list[Any]:
    """For each format: the dtypes that a sharded layer sees, of its sharded parameters, and of its gradients."""
    mesh, found = Parallelism().mesh(dist.get_world_size(), "cpu"), list[Any]()
    for name in ("fp32", "bf16", "fp16"):
        seen, model = list[torch.dtype](), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[0].register_forward_pre_hook(
            lambda layer, args, seen=seen: seen.extend((layer.weight.dtype, args[0].dtype))
        )
        shard(model, mesh, blocks=[model[0]], precision=Precision(name, "cpu"))
        model(torch.ones(2, 4)).sum().backward()
        grad = model[0].weight.grad
        assert grad is not None
        found.append([name, *map(str, (*seen, model[0].weight.dtype, grad.dtype))])
    with pytest.raises(ValueError, match="give either precision or mixed_precision"):
        shard(
            nn.Linear(4, 4), mesh, blocks=[], precision=Precision("bf16", "cpu"), mixed_precision=MixedPrecisionPolicy()
        )
    return found


def test_fsdp_gathers_in_the_number_format(tmp_path: Path) -> None:
    whole, bf16, fp16 = "torch.float32", "torch.bfloat16", "torch.float16"
    assert (
        run(2, tmp_path, gathered)
        == [
            [
                ["fp32", whole, whole, whole, whole],
                ["bf16", bf16, bf16, whole, whole],
                ["fp16", fp16, fp16, whole, whole],
            ]
        ]
        * 2
    )
