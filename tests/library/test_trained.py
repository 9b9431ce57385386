"""What a checkpoint holds of a model and its optimizers comes back: tied weights, frozen and unused parameters, whatever the parallelism."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tests.library.support.processes import run
from trainyard_torch import (
    CheckpointError,
    Checkpoints,
    Parallelism,
    TrainState,
    group_by_mesh,
    replicate,
    shard,
    tensor_parallel,
)
from trainyard_torch.checkpoint import group_settings, parameter_names

KINDS = ("ddp", "fsdp", "tensor")
SOURCES = [*zip(KINDS, KINDS, strict=True), ("fsdp", "ddp"), ("tensor", "fsdp"), ("ddp", "tensor")]
"""Which resumes, and from whose checkpoint."""


class Tied(nn.Module):
    """Words to words by one matrix there and back; a layer that is frozen at first, and one that is not used at first."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.head = nn.Embedding(8, 6), nn.Linear(6, 8, bias=False)
        self.frozen, self.spare = nn.Linear(6, 6), nn.Linear(6, 6)
        self.head.weight = self.words.weight
        self.late = False
        self.double()

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.words(numbers))
        if self.late:
            x = x + self.spare(x)
        out: torch.Tensor = self.head(torch.tanh(x))
        return out


def wrapped(kind: str, model: Tied) -> nn.Module:
    mesh = Parallelism(tensor=2 if kind == "tensor" else 1).mesh(2, "cpu")
    if kind == "ddp":
        return replicate(model, mesh, find_unused_parameters=True)
    if kind == "fsdp":
        return shard(model, mesh, blocks=[model.frozen, model.spare])
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
        "frozen": ColwiseParallel(output_layouts=Replicate()),
        "spare": RowwiseParallel(input_layouts=Replicate()),
    }
    return tensor_parallel(model, mesh, plan)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([{"params": group} for group in group_by_mesh(model.parameters())], lr=0.05)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last + 1):
        torch.manual_seed(step)
        numbers, target = torch.randint(8, (2, 4, 5))
        loss = nn.functional.cross_entropy(model(numbers).flatten(0, 1), target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def whole(folder: Path, kind: str) -> list[float]:
    """Two steps, a checkpoint, and two more in which all is trained and used."""
    inner = Tied(seed=1)
    inner.frozen.requires_grad_(requires_grad=False)
    model = wrapped(kind, inner)
    optimizer = adam(model)
    checkpoints = Checkpoints(str(folder / kind))
    state = {"train_state": TrainState(model, optimizer)}
    checkpoints.load(state)
    before = _sum(inner.frozen.weight)
    train(model, optimizer, 1, 2)
    assert _sum(inner.frozen.weight) == before, "it is frozen"
    checkpoints.save(2, state, wait=True)
    state.clear()
    if kind == "ddp":
        # It looks once which parameters there are to train.
        del model
    inner.frozen.requires_grad_(requires_grad=True)
    inner.late = True
    return train(wrapped(kind, inner) if kind == "ddp" else model, optimizer, 3, 4)


def resumed(folder: Path, kind: str, source: str) -> list[float]:
    inner = Tied(seed=2)
    inner.late = True
    model = wrapped(kind, inner)
    assert inner.head.weight is inner.words.weight, "it is tied no more"
    optimizer = adam(model)
    found = Checkpoints(str(folder / source)).load({"train_state": TrainState(model, optimizer)})
    assert found
    assert found.step == 2
    assert [*map(id, optimizer.state)] == [id(inner.words.weight)], "others have had no gradient"
    return train(model, optimizer, 3, 4)


def _sum(parameter: torch.Tensor) -> float:
    own = parameter.detach()
    return float((own.full_tensor() if isinstance(own, DTensor) else own).sum())


def all_whole(folder: Path) -> dict[str, list[float]]:
    return {kind: whole(folder, kind) for kind in KINDS}


def all_resumed(folder: Path) -> list[list[float]]:
    return [resumed(folder, *source) for source in SOURCES]


def test_tied_frozen_and_unused_parameters_come_back(tmp_path: Path) -> None:
    undisturbed, again = run(2, tmp_path, all_whole, tmp_path)
    assert undisturbed == again
    for found in run(2, tmp_path, all_resumed, tmp_path):
        for (kind, source), losses in zip(SOURCES, found, strict=True):
            assert losses == (undisturbed[kind] if kind == source else pytest.approx(undisturbed[kind], rel=1e-12)), (
                kind,
                source,
            )


def one_layer_twice(folder: Path) -> tuple[list[float], list[str]]:
    """A module in two places, under DDP."""

    def built(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layer = nn.Linear(6, 6)
        model = nn.Sequential(nn.Embedding(8, 6), layer, nn.Tanh(), layer, nn.Linear(6, 8)).double()
        return replicate(model, Parallelism().mesh(dist.get_world_size(), "cpu"))

    model, other = built(1), built(2)
    state, resumed = ({"train_state": TrainState(each, adam(each))} for each in (model, other))
    checkpoints = Checkpoints(str(folder / "twice"))
    checkpoints.load(state)
    (optimizer,), (theirs,) = state["train_state"]._optimizers, resumed["train_state"]._optimizers
    train(model, optimizer, 1, 2)
    checkpoints.save(2, state, wait=True)
    Checkpoints(str(folder / "twice")).load(resumed)
    losses = train(model, optimizer, 3, 4)
    assert train(other, theirs, 3, 4) == losses
    return losses, sorted(state["train_state"].state_dict()["model"])


def test_a_layer_in_two_places_has_both_names(tmp_path: Path) -> None:
    (losses, found), _ = run(2, tmp_path, one_layer_twice, tmp_path)
    assert found == ["0.weight", "1.bias", "1.weight", "3.bias", "3.weight", "4.bias", "4.weight"]
    assert losses[0] != losses[1]


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def stepped(model: nn.Module, *optimizers: torch.optim.Optimizer, count: int = 2) -> list[float]:
    losses = []
    for step in range(count):
        loss = model(torch.full((2, 3), 0.1 + step)).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def saved(folder: Path, step: int, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    checkpoints = Checkpoints(str(folder))
    state = {"train_state": TrainState(model, optimizers)}
    checkpoints.load(state)
    checkpoints.save(step, state, wait=True)


def loaded(folder: Path, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    assert Checkpoints(str(folder)).load({"train_state": TrainState(model, optimizers)})


def test_two_optimizers_of_one_model(tmp_path: Path) -> None:
    model, other = small(), small(1)
    mine, theirs = (
        (torch.optim.AdamW(each[0].parameters(), lr=0.1), torch.optim.SGD(each[2].parameters(), lr=0.1, momentum=0.9))
        for each in (model, other)
    )
    stepped(model, *mine)
    saved(tmp_path, 1, model, *mine)
    loaded(tmp_path, other, *theirs)
    assert stepped(model, *mine) == stepped(other, *theirs)


def test_optimizer_state_for_new_parameters_is_fresh(tmp_path: Path) -> None:
    """Layers that are frozen are often left out of the optimizer."""
    model, other = small(), small(1)
    first = torch.optim.AdamW(model[2].parameters(), lr=0.1)
    stepped(model, first)
    saved(tmp_path, 1, model, first)
    every = torch.optim.AdamW(
        [{"params": model[2].parameters(), "lr": 0.1}, {"params": model[0].parameters(), "lr": 0.3}]
    )
    every.state.update(first.state)
    theirs = torch.optim.AdamW(
        [{"params": other[2].parameters(), "lr": 0.7}, {"params": other[0].parameters(), "lr": 0.3}]
    )
    loaded(tmp_path, other, theirs)
    assert [group["lr"] for group in theirs.param_groups] == [0.1, 0.3], "the checkpoint's, and the program's"
    assert [parameter.grad for parameter in other.parameters()] == [None] * 4
    for each in model.parameters():
        each.grad = None
    assert stepped(model, every) == stepped(other, theirs)


def per_parameter(
    optimizer: torch.optim.Optimizer, packed: Mapping[str, Any], names: Mapping[nn.Parameter, str]
) -> dict[str, Any]:
    """The settings as earlier releases stored them."""
    return {
        f"param_groups.{names[each]}.{key}": value
        for group, described in zip(optimizer.param_groups, packed["param_groups"], strict=True)
        for each in group["params"]
        for key, value in described.items()
        if key not in {"params", "param_names"}
    }


def grouped(model: nn.Module, *rates: float) -> torch.optim.Optimizer:
    groups = [{"params": model[index].parameters(), "lr": rate} for index, rate in zip((0, 2), rates, strict=True)]
    return torch.optim.AdamW(groups, betas=(0.5, 0.6))


@pytest.mark.parametrize("earlier", [False, True], ids=["this release", "an earlier release"])
def test_settings_return_to_their_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, earlier: bool) -> None:
    model, other = small(), small(1)
    optimizer, theirs = grouped(model, 0.1, 0.3), torch.optim.AdamW(reversed([*other.parameters()]), lr=0.9)
    stepped(model, optimizer)
    with monkeypatch.context() as patch:
        if earlier:
            patch.setattr(group_settings, "taken", per_parameter)
        saved(tmp_path, 1, model, optimizer)
    third = small(2)
    same = grouped(third, 0.7, 0.9)
    loaded(tmp_path, third, same)
    assert [(group["lr"], tuple(group["betas"])) for group in same.param_groups] == [
        (0.1, (0.5, 0.6)),
        (0.3, (0.5, 0.6)),
    ]
    assert stepped(model, optimizer) == stepped(third, same)
    loaded(tmp_path, other, theirs)
    assert theirs.param_groups[0]["lr"] == 0.3, "of the group's first parameter, which is in layer 2"


def test_settings_reach_the_optimizers_of_stages(tmp_path: Path) -> None:
    model, other = small(), small(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    stages = [torch.optim.AdamW(other[index].parameters(), lr=0.1) for index in (0, 2)]
    stepped(model, optimizer)
    saved(tmp_path, 1, model, optimizer)
    loaded(tmp_path, other, *stages)
    assert [each.param_groups[0]["lr"] for each in stages] == [0.3, 0.3]
    assert stepped(model, optimizer) == stepped(other, *stages)


def test_settings_are_stored_once_for_each_group() -> None:
    model = small()
    settings = TrainState(model, grouped(model, 0.1, 0.3)).state_dict_for(None)["optimizer"]
    assert [*settings] == ["group_settings.0.weight", "group_settings.2.weight"]


def test_rate_that_is_a_tensor_returns(tmp_path: Path) -> None:
    model, other = small(), small(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.3), foreach=False)
    theirs = torch.optim.AdamW(other.parameters(), lr=torch.tensor(0.1), foreach=False)
    saved(tmp_path, 1, model, optimizer)
    loaded(tmp_path, other, theirs)
    rate = theirs.param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor)
    assert float(rate) == pytest.approx(0.3)


def test_the_state_of_what_is_frozen_later_stays(tmp_path: Path) -> None:
    model, other = small(), small(1)
    optimizer, theirs = (torch.optim.AdamW(each.parameters(), lr=0.1) for each in (model, other))
    stepped(model, optimizer)
    saved(tmp_path, 1, model, optimizer)
    other[0].requires_grad_(requires_grad=False)
    loaded(tmp_path, other, theirs)
    saved(tmp_path, 2, other, theirs)
    model[0].requires_grad_(requires_grad=False)
    assert stepped(model, optimizer) == stepped(other, theirs)
    third = small(3)
    last = torch.optim.AdamW(third.parameters(), lr=0.1)
    loaded(tmp_path, third, last)
    assert len(last.state) == 4


def test_a_checkpoint_before_the_first_step_changes_nothing(tmp_path: Path) -> None:
    model, other, untouched = small(), small(1), small()
    optimizer, theirs, usual = (torch.optim.AdamW(each.parameters(), lr=0.1) for each in (model, other, untouched))
    saved(tmp_path, 1, model, optimizer)
    assert not optimizer.state
    loaded(tmp_path, other, theirs)
    assert not theirs.state
    assert stepped(model, optimizer) == stepped(other, theirs) == stepped(untouched, usual)


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ("AdamW", "SGD", "the checkpoint has exp_avg, exp_avg_sq, step of [02].(weight|bias), which SGD does not keep"),
        ("SGD", "AdamW", "the checkpoint has momentum_buffer of [02].(weight|bias), which AdamW does not keep"),
        ("Adagrad", "AdamW", "the checkpoint has sum of [02].(weight|bias), which AdamW does not keep"),
    ],
)
def test_a_checkpoint_of_another_optimizer(tmp_path: Path, first: str, then: str, message: str) -> None:
    def made(kind: str, model: nn.Module, momentum: float) -> torch.optim.Optimizer:
        more: dict[str, Any] = {"momentum": momentum} if kind == "SGD" else {}
        optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **more)
        return optimizer

    model, other = small(), small(1)
    optimizer = made(first, model, 0.9)
    stepped(model, optimizer)
    saved(tmp_path, 1, model, optimizer)
    with pytest.raises(CheckpointError, match=f"cannot be loaded into this program: .*{message}: it is of another"):
        loaded(tmp_path, other, made(then, other, 0.0))


def test_wrappers_are_in_no_name() -> None:
    def keys(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[list[str], list[str]]:
        state = TrainState(model, optimizer).state_dict()
        return [*state["model"]], [*state["optimizer"]]

    plain, wrapped = small(), small()
    wrapped[0] = checkpoint_wrapper(wrapped[0])
    first, second = (torch.optim.AdamW(model.parameters()) for model in (plain, wrapped))
    assert stepped(plain, first) == stepped(wrapped, second)
    compiled = torch.compile(wrapped, backend="eager")
    assert keys(compiled, second) == keys(plain, first)
    other = torch.optim.AdamW(plain.parameters())
    TrainState(plain, other).load_state_dict(TrainState(compiled, second).state_dict())
    assert [*other.state_dict()["state"]] == [0, 1, 2, 3]


def test_what_cannot_be_saved_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match="4 of the optimizer's 4 parameters are not the model's: create the optimizer"):
        TrainState(small(), optimizer)
    with pytest.raises(ValueError, match=r"0\.weight is in two optimizers: leave it out of one"):
        TrainState(model, [optimizer, torch.optim.SGD(model.parameters())])
    with pytest.raises(ValueError, match=r"two models have a parameter 0\.bias"):
        TrainState([model, small()], optimizer)
    optimizer.state["average"] = {"loss": 1.0}
    with pytest.raises(ValueError, match="AdamW keeps state for average, which is not one of its parameters"):
        TrainState(model, optimizer).state_dict()
    monkeypatch.setattr(parameter_names, "FullyShardedDataParallel", nn.Tanh)
    with pytest.raises(ValueError, match="1 is wrapped in FullyShardedDataParallel, whose parameters"):
        TrainState(model, torch.optim.AdamW(model.parameters()))


def test_unloadable_checkpoint_is_refused_at_once() -> None:
    model = small()
    with pytest.raises(ValueError, match="the state of LBFGS can be saved and not loaded: keep it out"):
        TrainState(model, torch.optim.LBFGS(model.parameters()))


def test_step_hooks_do_not_see_loads(tmp_path: Path) -> None:
    model = small()
    optimizer = adam(model)
    stepped(model, optimizer)
    saved(tmp_path, 2, model, optimizer)
    other = small(1)
    fresh, loads = adam(other), []
    fresh.register_step_pre_hook(lambda *_: loads.append("before"))
    fresh.register_step_post_hook(lambda *_: loads.append("after"))
    loaded(tmp_path, other, fresh)
    assert loads == []
    stepped(other, fresh, count=1)
    assert loads == ["before", "after"]
