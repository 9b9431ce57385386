"""Activations that are recomputed: the same losses and gradients, with fewer bytes kept for the backward pass."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._functorch.config
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from tests.library.support.equality import Layer, mean_loss, transformer
from tests.library.support.processes import run
from trainyard_torch import Parallelism, checkpoint_activations, compile_model, replicate, shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOKENS = torch.arange(24).reshape(4, 6) % 11
MODES: list[dict[str, Any]] = [
    {"mode": "full"},
    {"mode": "selective"},
    {"mode": "selective", "save": [torch.ops.aten.gelu.default]},
]


class Made(TorchDispatchMode):  # type: ignore[misc]  # torch is there where this runs
    """The memory of all tensors that operations make."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, weakref.ref[Any]] = {}

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                self.storages[id(storage)] = weakref.ref(storage)
        return out

    def alive(self) -> int:
        """The bytes of those that are still in memory."""
        gc.collect()
        return sum(storage.nbytes() for each in self.storages.values() if (storage := each()) is not None)


def layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Layer)]


def trained(model: nn.Module) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """The loss, the gradients, and the bytes that are kept between forward and backward pass."""
    with Made() as made:
        loss = mean_loss(model(TOKENS), TOKENS)
        kept = made.alive()
    loss.backward()
    return loss.detach(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}, kept


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_equal_gradients_with_fewer_bytes() -> None:
    loss, gradients, most = trained(transformer())
    kept = []
    for options in MODES:
        model = transformer()
        names = list(model.state_dict())
        checkpoint_activations(layers(model), **options)
        assert list(model.state_dict()) == names
        own_loss, own, bytes_kept = trained(model)
        assert torch.equal(own_loss, loss)
        assert same(own, gradients)
        kept.append(bytes_kept)
    full, selective, gelu_only = kept
    assert full < gelu_only < selective < most
    assert full < most / 2


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)

    @override
    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.drop(self.layer(x).tanh()) * scale


def test_dropout_is_recomputed_as_it_was() -> None:
    torch.manual_seed(1)
    plain = Dropped()
    model = copy.deepcopy(plain)
    checkpoint_activations([model])
    found = []
    for each in (plain, model):
        torch.manual_seed(2)
        each(torch.ones(5, 8), scale=3.0).square().sum().backward()
        found.append(each.layer.weight.grad)
    assert torch.equal(*found)


def test_a_copy_recomputes_its_own_block() -> None:
    model = Dropped()
    checkpoint_activations([model])
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.layer.weight.zero_()
        other.layer.bias.fill_(1)
    assert torch.equal(other.eval()(torch.ones(1, 8)), torch.ones(1, 8).tanh())
    program = torch.export.export(nn.Sequential(other), (torch.ones(1, 8),), strict=False).module()
    assert torch.equal(program(torch.ones(1, 8)), torch.ones(1, 8).tanh())


def test_no_recomputation_outside_of_training() -> None:
    calls: list[bool] = []
    model = Dropped()
    model.layer.register_forward_hook(lambda *_: calls.append(True))
    checkpoint_activations([model])
    model(torch.ones(2, 8)).sum().backward()
    assert len(calls) == 2
    with torch.no_grad():
        model(torch.ones(2, 8))
    model.eval()(torch.ones(2, 8)).sum().backward()
    assert len(calls) == 4


def sharded(kind: str) -> tuple[bool, list[str]]:
    """Whether gradients of a sharded model are those of one without recomputation, by ranks."""
    mesh = Parallelism().mesh(2, "cpu")
    found = []
    for options in ({}, *MODES):
        model = transformer()
        if options:
            checkpoint_activations(layers(model), **options)
        if kind == "shard":
            shard(model, mesh, blocks=layers(model))
            wrapped: nn.Module = model
        else:
            wrapped = replicate(model, mesh)
        mean_loss(wrapped(TOKENS), TOKENS).backward()
        local = {name: each.grad for name, each in model.named_parameters()}
        found.append({name: getattr(each, "full_tensor", lambda each=each: each)() for name, each in local.items()})
    return all(same(each, found[0]) for each in found), list(found[0])


@pytest.mark.parametrize("kind", ["shard", "replicate"])
def test_under_data_parallelism(tmp_path: Path, kind: str) -> None:
    names = [name for name, _ in transformer().named_parameters()]
    assert run(2, tmp_path, sharded, kind) == [(True, names)] * 2


@pytest.fixture
def _budget() -> Iterator[None]:
    """Take the budget of the process back."""
    before = torch._functorch.config.activation_memory_budget
    yield
    torch._functorch.config.activation_memory_budget = before
    torch._dynamo.reset()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = transformer()

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def compiled_with(budget: float | None) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    torch._dynamo.reset()
    model = compile_model(Model(), backend="aot_eager_decomp_partition", activation_memory_budget=budget)
    return compiled_training(model)


def compiled_training(model: nn.Module) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """As `trained`: what a compiled graph keeps are saved tensors, and dispatch modes would not let it be compiled."""
    sizes: dict[int, int] = {}
    ours = {each.untyped_storage().data_ptr() for each in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ours:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    model(TOKENS)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = mean_loss(model(TOKENS), TOKENS)
    loss.backward()
    return (
        loss.detach(),
        {name: each.grad for name, each in model.named_parameters() if each.grad is not None},
        sum(sizes.values()),
    )


@pytest.mark.usefixtures("_budget")
def test_a_memory_budget_under_compilation() -> None:
    loss, gradients, most = compiled_with(1.0)
    own_loss, own, least = compiled_with(0.0)
    assert torch.allclose(own_loss, loss)
    assert all(torch.allclose(own[name], gradients[name]) for name in gradients)
    assert least < most / 2


@pytest.mark.usefixtures("_budget")
def test_checkpointed_blocks_are_compiled() -> None:
    loss, gradients, _ = trained(Model())
    model = Model()
    checkpoint_activations(layers(model), mode="selective")
    own_loss, own, _ = compiled_training(compile_model(model, backend="aot_eager_decomp_partition"))
    assert torch.allclose(own_loss, loss)
    assert all(torch.allclose(own[name], gradients[name]) for name in gradients)


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_count_a_batch_once(options: Any, momentum: float | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=momentum), nn.GELU(), nn.Linear(4, 4))
    own = copy.deepcopy(model)
    checkpoint_activations([own], **options)
    for _ in range(3):
        x = torch.randn(8, 4)
        for each in (model, own):
            each(x).square().mean().backward()
    assert same(dict(own.state_dict()), dict(model.state_dict()))
    assert own[1].momentum == momentum


def test_compiled_code_recomputes_no_running_statistics() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

        @override
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model = Normed()
    checkpoint_activations([model.inner])
    with pytest.raises(ValueError, match="checkpoint_activations recomputes inner, which has running statistics"):
        compile_model(model, backend="aot_eager")


def compiled() -> nn.Module:
    return compile_model(Dropped(), backend="aot_eager")


def nested() -> list[nn.Module]:
    outer = nn.Sequential(Dropped())
    return [outer, outer[0]]


def done() -> list[nn.Module]:
    checkpoint_activations(found := [Dropped()])
    return found


@pytest.mark.parametrize(
    ("blocks", "options", "message"),
    [
        (lambda: [Dropped()], {"mode": "some"}, "mode must be one of full, selective, got 'some'"),
        (lambda: [Dropped()], {"save": [torch.ops.aten.mm.default]}, 'save names the operations that mode="selective"'),
        (lambda: [Dropped()], {"mode": "selective", "save": []}, "or name at least one"),
        (lambda: [Dropped()], {"mode": "selective", "save": [torch.mm]}, "which is no operation"),
        (lambda: [Dropped(), nn.ModuleList()], {}, "a ModuleList has no forward"),
        (lambda: 2 * [Dropped()], {}, "a module is there twice"),
        (nested, {}, "a part of a Sequential would be recomputed twice"),
        (done, {}, "a part of a Dropped would be recomputed twice"),
        (lambda: [compiled()], {}, "a Dropped is sharded or compiled already"),
    ],
)
def test_what_cannot_be_recomputed(blocks: Callable[[], list[nn.Module]], options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checkpoint_activations(blocks(), **options)


@pytest.mark.parametrize(
    ("budget", "backend", "message"),
    [(1.5, "inductor", "from 0 to 1, not 1.5"), (0.5, "aot_eager", "aot_eager keeps all")],
)
def test_a_budget_that_cannot_hold(budget: float, backend: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_model(Model(), backend=backend, activation_memory_budget=budget)
