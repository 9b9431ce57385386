"""LARS and LAMB against their formulas, written out in numpy; and that neither shards nor a restart change what they do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.library.support.processes import run
from trainyard_torch.optim.lamb import LAMB
from trainyard_torch.optim.lars import LARS
from trainyard_torch.optim.layerwise import parameter_groups
from trainyard_torch.optim.schedule import LRSchedule

BOTH = [LARS, LAMB]


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2)).double()


def loss(model: nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return nn.functional.mse_loss(model(x), x[:, :2] + x[:, 2:])


def made(kind: Any, model: nn.Module) -> Any:
    return kind(parameter_groups(model, 0.01), {LARS: 1.5, LAMB: 0.02}[kind])


def train(model: nn.Module, optimizer: Any, first: int, last: int) -> np.ndarray:
    for step in range(first, last):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
    return torch.cat([value.detach().flatten().clone() for value in model.parameters()]).numpy()


def lars_by_hand(weights: list[np.ndarray], gradients: list[list[np.ndarray]], decay: float) -> list[np.ndarray]:
    moved = [np.zeros_like(w) for w in weights]
    for step in gradients:
        for at, g in enumerate(step):
            w, flat = weights[at], weights[at].ndim < 2
            b = 0 if flat else decay
            local = 1 if flat else 0.001 * np.linalg.norm(w) / (np.linalg.norm(g) + b * np.linalg.norm(w))
            moved[at] = 0.9 * moved[at] + 1.5 * local * (g + b * w)
            weights[at] = w - moved[at]
    return weights


def lamb_by_hand(weights: list[np.ndarray], gradients: list[list[np.ndarray]], decay: float) -> list[np.ndarray]:
    means, squares = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    for count, step in enumerate(gradients, 1):
        for at, g in enumerate(step):
            w, flat = weights[at], weights[at].ndim < 2
            means[at] = 0.9 * means[at] + 0.1 * g
            squares[at] = 0.999 * squares[at] + 0.001 * g * g
            r = means[at] / (1 - 0.9**count) / (np.sqrt(squares[at] / (1 - 0.999**count)) + 1e-6)
            r = r + (0 if flat else decay) * w
            trust = 1 if flat else np.linalg.norm(w) / np.linalg.norm(r)
            weights[at] = w - 0.02 * trust * r
    return weights


@pytest.mark.parametrize(("kind", "by_hand"), [(LARS, lars_by_hand), (LAMB, lamb_by_hand)])
def test_the_papers_formula(kind: Any, by_hand: Any) -> None:
    model = network()
    optimizer, given = made(kind, model), []
    begin = [value.detach().numpy().copy() for value in model.parameters()]
    for step in range(6):
        optimizer.zero_grad()
        loss(model, step).backward()
        given.append([value.grad.numpy().copy() for value in model.parameters()])  # type: ignore[union-attr]
        optimizer.step()
    for found, expected in zip(model.parameters(), by_hand(begin, given, 0.01), strict=True):
        assert np.allclose(found.detach().numpy(), expected, rtol=0, atol=1e-13)


def sharded() -> list[float]:
    """fully_shard itself does not run on CPUs with torch 2.6; what it makes of parameters and gradients are these."""
    mesh, far = init_device_mesh("cpu", (dist.get_world_size(),)), []
    for kind in BOTH:
        ends = []
        for cut in (lambda value: value.clone(), lambda value: distribute_tensor(value, mesh, [Shard(0)])):
            torch.manual_seed(5)
            weights = [nn.Parameter(cut(torch.randn(shape, dtype=torch.float64))) for shape in ((5, 3), (4, 2), (3,))]
            optimizer = kind(
                [{"params": weights[:2], "weight_decay": 0.01}, {"params": weights[2:], "adapt": False}], 0.5
            )
            for _ in range(4):
                for weight in weights:
                    weight.grad = cut(torch.randn(weight.shape, dtype=torch.float64))
                optimizer.step()
            values = [value.full_tensor() if isinstance(value, DTensor) else value for value in weights]
            ends.append(torch.cat([value.detach().flatten() for value in values]))
        far.append(float((ends[0] - ends[1]).abs().max()))
    return far


def test_shards_make_no_difference(tmp_path: Path) -> None:
    assert np.max(run(2, tmp_path, sharded)) < 1e-13


@pytest.mark.parametrize("kind", BOTH)
def test_a_resumed_run_has_the_same_bits(kind: Any, tmp_path: Path) -> None:
    model = network()
    optimizer = made(kind, model)
    train(model, optimizer, 0, 4)
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "c")
    other = network()
    resumed = made(kind, other)
    weights, state = torch.load(tmp_path / "c")
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert np.array_equal(train(model, optimizer, 4, 8), train(other, resumed, 4, 8))


@pytest.mark.parametrize("kind", BOTH)
def test_a_small_network_learns(kind: Any) -> None:
    model = network()
    optimizer = made(kind, model)
    # Where no norm tempers it, a rate of LARS is far too high.
    optimizer.param_groups[1]["lr_scale"] = 0.002 if kind is LARS else 1.0
    schedule = LRSchedule(
        base_lr={LARS: 10.0, LAMB: 0.02}[kind], batch_size=8, reference_batch_size=8, warmup_samples=80, start_lr=0.0
    )
    before = sum(loss(model, step).item() for step in range(1000, 1020))
    for step in range(300):
        schedule.apply(optimizer, step * 8)
        train(model, optimizer, step, step + 1)
    after = sum(loss(model, step).item() for step in range(1000, 1020))
    assert after < 0.4 * before


@pytest.mark.parametrize("kind", BOTH)
def test_zeros_are_left_and_nothing_becomes_nan(kind: Any) -> None:
    weight, idle = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = kind([weight, idle], 0.1)
    for _ in range(2):
        weight.grad, idle.grad = torch.ones(2, 2), torch.zeros(2, 2)
        assert optimizer.step(lambda: torch.tensor(3.0)) == 3
    assert (weight < 0).all()
    assert torch.equal(idle, torch.ones(2, 2))


@pytest.mark.parametrize("kind", BOTH)
def test_tensor_rate_and_16_bit_weights(kind: Any) -> None:
    weights = [nn.Parameter(torch.full((300, 300), 3.0, dtype=torch.bfloat16)) for _ in range(2)]
    for weight, rate in zip(weights, (torch.tensor(0.5), 0.5), strict=True):
        optimizer = kind([weight], rate)
        weight.grad = torch.ones_like(weight)
        LRSchedule(base_lr=0.5, batch_size=1, reference_batch_size=1).apply(optimizer, 0)
        optimizer.step()
    assert torch.equal(*weights)
    assert torch.isfinite(weights[0]).all()
    assert (weights[0] < 3).all() or kind is LARS, "0.001 of it is less than bf16 can tell"


def test_biases_and_norms_are_left_out() -> None:
    model = network()
    model[0].requires_grad_(requires_grad=False)  # type: ignore[index]
    weights, others = parameter_groups(model, 0.5)
    assert [value.shape for value in weights["params"]] == [(2, 6)]
    assert [value.shape for value in others["params"]] == [(6,), (6,), (2,)]
    assert (weights["weight_decay"], weights["adapt"], others["weight_decay"], others["adapt"]) == (0.5, True, 0, False)
    assert len(parameter_groups(nn.Linear(2, 2, bias=False), 0)) == 1


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (LARS, {"lr": -1}, "lr must be from 0"),
        (LARS, {"momentum": 1.0}, "momentum must be from 0 to less than 1, got 1.0"),
        (LARS, {"trust_coefficient": float("nan")}, "trust_coefficient must be"),
        (LAMB, {"betas": (0.9, 1.0)}, "beta2 must be from 0 to less than 1"),
        (LAMB, {"eps": -1.0}, "eps must be"),
        (LAMB, {"max_weight_norm": -1.0}, "max_weight_norm must be"),
        (LAMB, {"weight_decay": float("inf")}, "weight_decay must be"),
    ],
)
def test_numbers_that_make_no_sense(kind: Any, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind([nn.Parameter(torch.zeros(1))], **{"lr": 0.1} | wrong)


@pytest.mark.parametrize("kind", BOTH)
def test_a_sparse_gradient_is_reported(kind: Any) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="make the embedding with sparse=False"):
        kind(table.parameters(), 0.1).step()
