"""A model from the meta device has the same values at any parallelism, and no process ever has all of it."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from tests.library.support.equality import PLAN, WIDTH, WORDS, Layer
from tests.library.support.processes import run
from trainyard_torch import Parallelism, initialize_parameters, pipeline_stages, replicate, shard, tensor_parallel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Positions(nn.Module):
    """A buffer that no checkpoint has."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(16, WIDTH, dtype=torch.float64), persistent=False)

    def reset_parameters(self) -> None:
        self.table = torch.linspace(0, 1, 16 * WIDTH, dtype=torch.float64).reshape(16, WIDTH)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[: x.shape[1]]


def model() -> nn.Sequential:
    with torch.device("meta"):
        made = nn.Sequential(
            nn.Embedding(WORDS, WIDTH),
            Positions(),
            Layer(),
            Layer(),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, WORDS, bias=False),
        )
        made[5].weight = made[0].weight
        return made.double()


def layers(made: nn.Module) -> list[nn.Module]:
    return [module for module in made.modules() if isinstance(module, Layer)]


def values(made: nn.Module) -> dict[str, Any]:
    """All parameters and buffers in full size, as arrays: ranks end before a tensor is read."""
    named = [*made.named_parameters(remove_duplicate=False), *made.named_buffers()]
    return {
        name.removeprefix("module."): (each.full_tensor() if isinstance(each, DTensor) else each)
        .detach()
        .numpy()
        .copy()
        for name, each in named
    }


def layouts(world_size: int) -> dict[str, dict[str, Any]]:
    """The values of the model in each layout that so many ranks can have."""
    found = {}
    mesh = Parallelism().mesh(world_size, "cpu")
    found["one unit"] = values(initialize_parameters(shard(model(), mesh, blocks=[]), "cpu", seed=5))
    made = model()
    shard(made, mesh, blocks=layers(made))
    initialize_parameters(made, "cpu", seed=5)
    assert made[5].weight is made[0].weight
    found["blocks"] = values(made)
    found["replicas"] = values(replicate(initialize_parameters(model(), "cpu", seed=5), mesh))
    tensors = Parallelism(tensor=2).mesh(world_size, "cpu")
    made = tensor_parallel(model(), tensors, PLAN)
    if world_size > 2:
        shard(made, tensors, blocks=layers(made))
    found["tensor"] = values(initialize_parameters(made, "cpu", seed=5))
    made = model()
    shard(made, Parallelism(replicate=2).mesh(world_size, "cpu"), blocks=layers(made))
    found["copies"] = values(initialize_parameters(made, "cpu", seed=5))
    return found


@pytest.mark.parametrize("world_size", [2, 4])
def test_equal_values_at_any_parallelism(tmp_path: Path, world_size: int) -> None:
    expected = values(initialize_parameters(model(), "cpu", seed=5))
    assert all(bool(np.isfinite(each).all()) for each in expected.values())
    assert float(expected["2.up.weight"].std()) == pytest.approx(1 / math.sqrt(3 * WIDTH), rel=0.2)
    for rank in run(world_size, tmp_path, layouts, world_size):
        for layout, found in rank.items():
            assert found.keys() == expected.keys(), layout
            assert all(np.array_equal(found[name], expected[name]) for name in expected), layout


def test_values_depend_on_the_seed_and_name() -> None:
    first, again = (values(initialize_parameters(model(), "cpu", seed=5)) for _ in range(2))
    other = values(initialize_parameters(model(), "cpu", seed=6))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["2.up.weight"], other["2.up.weight"])
    assert not np.array_equal(first["2.up.weight"], first["3.up.weight"])


def test_generators_are_as_before() -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    initialize_parameters(model(), "cpu")
    assert torch.equal(torch.rand(3), expected)


def staged() -> tuple[int, list[bool]]:
    mesh = Parallelism(pipeline=2).mesh(2, "cpu")
    with torch.device("meta"):
        whole = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    expected = values(initialize_parameters(whole, "cpu"))
    with torch.device("meta"):
        whole = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    (own,) = pipeline_stages(whole, mesh)
    found = values(initialize_parameters(own, "cpu"))
    return len(found), [np.array_equal(found[name], expected[name]) for name in found]


def test_stages_of_a_pipeline_have_the_same_values(tmp_path: Path) -> None:
    assert run(2, tmp_path, staged) == [(4, [True] * 4)] * 2


class Peak(TorchDispatchMode):  # type: ignore[misc]  # torch is there where this runs
    """The most bytes that the tensors of a process had at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.most = 0

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        local = out.to_local() if isinstance(out, DTensor) else out
        if isinstance(local, torch.Tensor) and not local.is_meta:
            storage = local.untyped_storage()
            if id(storage) not in self.alive:
                self.alive[id(storage)] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, id(storage), None)
            self.most = max(self.most, sum(self.alive.values()))
        return out


DEEP, WIDE = 12, 64


def peak(world_size: int) -> tuple[int, int]:
    with torch.device("meta"):
        deep = nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(DEEP)))
    shard(deep, Parallelism().mesh(world_size, "cpu"), blocks=list(deep))
    with Peak() as measured:
        initialize_parameters(deep, "cpu")
    return measured.most, sum(each.to_local().nbytes for each in deep.parameters())


def test_no_process_holds_the_whole_model(tmp_path: Path) -> None:
    one, whole = 4 * WIDE * WIDE, 4 * WIDE * WIDE * DEEP
    for most, own in run(4, tmp_path, peak, 4):
        assert own == whole // 4
        # The shards, one module in full size, and one mask of the check for unset values.
        assert own + one <= most <= own + 2 * one < whole / 2


def attention() -> nn.Module:
    with torch.device("meta"):
        return nn.MultiheadAttention(8, 2)


def norms() -> nn.Module:
    with torch.device("meta"):
        return nn.BatchNorm1d(8)


@pytest.mark.parametrize("made", [attention, norms])
def test_modules_of_torch_initialize_themselves(made: Callable[[], nn.Module]) -> None:
    module = initialize_parameters(made(), "cpu")
    assert all(bool(each.isfinite().all()) for each in module.state_dict().values())
    if isinstance(module, nn.BatchNorm1d):
        assert module.num_batches_tracked is not None
        assert (int(module.num_batches_tracked), float(module.running_var.sum())) == (0, 8.0)  # type: ignore[union-attr]
    else:
        assert float(module.out_proj.bias.detach().abs().sum()) == 0


def test_an_initializer_of_the_caller() -> None:
    seen: list[str] = []

    def init(module: nn.Module) -> None:
        seen.append(type(module).__name__)
        for each in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            each.fill_(3)

    made = initialize_parameters(model(), "cpu", init=init)
    assert all(bool((each == 3).all()) for each in values(made).values())
    assert sorted(set(seen)) == ["Embedding", "LayerNorm", "Linear", "Positions"]


class Scale(nn.Module):
    """A parameter without an initializer."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.empty(size))
        self.inner = nn.Linear(2, 2)


class Forgetful(Scale):
    def reset_parameters(self) -> None:
        """Fill half."""
        with torch.no_grad():
            self.factor[:2] = 1


class Growing(Scale):
    def reset_parameters(self) -> None:
        """Change the shape."""
        self.factor = nn.Parameter(torch.ones(5))


class Reaching(Scale):
    def reset_parameters(self) -> None:
        """Initialize the part, too."""
        nn.init.ones_(self.factor)
        nn.init.normal_(self.inner.weight)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Scale, r"0 \(Scale\) has factor and no reset_parameters\(\): add it, or pass init"),
        (Forgetful, r"the initializer of 0 \(Forgetful\) leaves values of factor unset"),
        (Growing, r"factor of 0 has shape \(4,\), and the module's initializer makes it \(5,\)"),
    ],
)
def test_initializers_that_do_not_fit(kind: type[nn.Module], message: str) -> None:
    with torch.device("meta"):
        made = nn.Sequential(kind())
    with pytest.raises(ValueError, match=message):
        initialize_parameters(made, "cpu")


def test_a_model_with_values_is_refused() -> None:
    with pytest.raises(ValueError, match=r"make the model within torch\.device"):
        initialize_parameters(nn.Linear(2, 2), "cpu")


def test_a_part_with_values_is_refused() -> None:
    made = model()
    made[4] = nn.LayerNorm(WIDTH)
    with pytest.raises(ValueError, match=r"4\.weight is not on the meta device, and would lose its values"):
        initialize_parameters(made, "cpu")


def reaching() -> None:
    with torch.device("meta"):
        made = nn.Sequential(Reaching())
    shard(made, Parallelism().mesh(2, "cpu"), blocks=[])
    with pytest.raises(ValueError, match="the initializer of 0 draws random values for the shards of a module in it"):
        initialize_parameters(made, "cpu")


def test_random_values_for_other_shards_are_refused(tmp_path: Path) -> None:
    run(2, tmp_path, reaching)
