"""The parameter server. In step it is SGD of one process. Out of step nothing is staler than its bound.

A trainer that waits in vain learns for which other one.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.library.support.processes import run
from trainyard_torch.server import Roles
from trainyard_torch.server.answers import Counts, ServerClosedError, TrainerLeftError
from trainyard_torch.server.parameter_store import ParameterStore
from trainyard_torch.server.session import Parameters, ServerError, join_parameter_server
from trainyard_torch.server.shard import Shard

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)
PLAIN = partial(torch.optim.SGD, lr=0.1)
STEPS, BATCH = 30, 12


def made() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x = torch.randn(STEPS, BATCH, 5, dtype=torch.float64)
    return model, x, x.sum(-1, keepdim=True).sin()


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def alone() -> list[list[float]]:
    model, x, y = made()
    optimizer = SGD(model.parameters())
    for step in range(STEPS):
        if step == STEPS // 2:
            optimizer.param_groups[0]["lr"] = 0.01
        optimizer.zero_grad()
        loss_of(model, x[step], y[step]).backward()
        optimizer.step()
    return [parameter.flatten().tolist() for parameter in model.parameters()]


def together(folder: str, servers: tuple[int, int], world_size: int) -> Any:
    """Half of the training with some servers, the other half by as many others, that load their checkpoint."""
    rank = int(os.environ["RANK"])
    kept = Path(folder) / "state"

    def state() -> Any:
        # The others are there long before.
        time.sleep(0.5)
        return torch.load(kept) if kept.exists() else None

    model = made()[0]
    for part, steps in enumerate((range(STEPS // 2), range(STEPS // 2, STEPS))):
        model, roles = made()[0], Roles(world_size, servers[part])
        if rank > 0:
            # Another start on each: the servers' counts.
            torch.manual_seed(rank if not roles.serves(rank) else 3)
            model = model if roles.serves(rank) else nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        meet = f"file://{folder}/rpc-{part}"
        with join_parameter_server(model, SGD, roles, rank, state=state, timeout=60, init_method=meet) as parameters:
            if parameters is not None:
                assert parameters.resumed_updates == steps.start
                learn(parameters, model, roles, rank, steps, kept)
    return [parameter.flatten().tolist() for parameter in model.parameters()] if rank == 0 else None


def learn(parameters: Parameters, model: nn.Module, roles: Roles, rank: int, steps: range, kept: Path) -> None:
    _, x, y = made()
    if steps.start and rank == 0:
        # Before its first gradient nothing is applied.
        parameters.configure(lr=0.01)
    share = BATCH // roles.trainers
    for step in steps:
        here = slice(rank * share, (rank + 1) * share)
        loss_of(model, x[step, here], y[step, here]).backward()
        parameters.push()
    assert set(parameters.versions.values()) == {steps.stop}
    if rank == 0 and not steps.start:
        torch.save(parameters.state_dict(), kept)
    with pytest.raises(ServerError, match=r"(?s)server-0 refused: .*no option rate: it has"):
        parameters.configure(rate=1)
    counts = parameters.counts()
    assert {(each.updates, each.applied, each.stalest) for each in counts.values()} == {(15, 15 * roles.trainers, 0)}
    assert not parameters.must_stop()


@pytest.mark.parametrize(("servers", "world_size"), [((1, 1), 3), ((2, 1), 4), ((1, 2), 4)])
def test_in_step_it_is_sgd_of_one_process(tmp_path: Path, servers: tuple[int, int], world_size: int) -> None:
    ours = run(world_size, tmp_path, together, str(tmp_path), servers, world_size)[0]
    for got, wanted in zip(ours, alone(), strict=True):
        assert got == pytest.approx(wanted, abs=1e-12, rel=0)


def apart(folder: str, bound: int) -> Any:
    rank, roles = int(os.environ["RANK"]), Roles(3, 1)
    torch.manual_seed(1)
    model = nn.Linear(4, 1, bias=False).double()
    x = torch.randn(64, 4, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]], dtype=torch.float64)
    with join_parameter_server(
        model, PLAIN, roles, rank, staleness=bound, timeout=60, init_method=f"file://{folder}/rpc-{bound}"
    ) as parameters:
        if parameters is None:
            return None
        for _ in range(60 if rank else 90):
            loss_of(model, x, y).backward()
            if rank:
                time.sleep(0.005)
            parameters.push()
        return float(loss_of(model, x, y).detach()), parameters.counts()["server-0"]


@pytest.mark.parametrize("bound", [1, 4])
def test_asynchronous_training_converges_within_staleness_bound(tmp_path: Path, bound: int) -> None:
    (first, _), (second, counts), _ = run(3, tmp_path, apart, str(tmp_path), bound)
    assert first < 1e-2
    assert second < 1e-4
    assert counts.updates == counts.applied
    assert 0 < counts.stalest <= bound
    assert counts.staleness <= bound * counts.applied


def shard(trainers: int = 2, staleness: int | None = None, make: Callable[..., Any] = PLAIN, at: float = 0.0) -> Shard:
    made = Shard({"w": torch.full((2,), at)}, make, trainers, staleness)
    made.begin(None)
    return made


def pushed(held: Shard, trainer: int, value: float | None) -> Any:
    return held.push(trainer, {"w": None if value is None else torch.full((2,), value)})


def test_step_waits_for_and_averages_all() -> None:
    held = shard()
    assert [held.pull(trainer)[0] for trainer in range(2)] == [0, 0]
    first = pushed(held, 1, 1.0)
    assert not first.done()
    assert held.status().missing == [0]
    second = pushed(held, 0, 3.0)
    for answer in (first, second):
        version, parameters, _ = answer.wait()
        assert version == 1
        assert parameters["w"].tolist() == pytest.approx([-0.2, -0.2])
    assert held.status().counts == Counts(1, 2, 0, 0)
    assert held.status().missing == []


def test_an_unused_parameter_is_not_touched() -> None:
    held = shard(make=partial(torch.optim.SGD, lr=0.1, weight_decay=0.5), at=1.0)
    held.pull(0), held.pull(1)
    pushed(held, 0, None)
    assert pushed(held, 1, None).wait()[1]["w"].tolist() == [1, 1]
    pushed(held, 0, None)
    assert pushed(held, 1, 1.0).wait()[1]["w"].tolist() == pytest.approx([0.9, 0.9]), "half of the gradient, and decay"


def test_asynchronous_trainers_do_not_wait_for_departed() -> None:
    held = shard(staleness=1)
    held.pull(0), held.pull(1)
    assert pushed(held, 0, 1.0).done()
    late = pushed(held, 0, 1.0)
    assert not late.done(), "trainer-1 would be two updates behind"
    held.leave(1)
    assert late.wait()[0] == 2
    assert pushed(held, 0, 1.0).done()
    with pytest.raises(TrainerLeftError, match="trainer-1 has left"):
        pushed(held, 1, 1.0)


def test_idle_asynchronous_trainer_may_come_back() -> None:
    shard = Shard({"w": torch.zeros(2)}, PLAIN, trainers=2, staleness=1)
    shard.begin(None)
    shard.pull(0)
    shard.pull(1)
    gradient = {"w": torch.ones(2)}
    assert shard.push(1, gradient).wait().version == 1
    second = shard.push(1, gradient)
    assert not second.done()
    shard.release(0)
    assert second.wait().version == 2
    for version in range(3, 9):
        assert shard.push(1, gradient).wait().version == version
    with pytest.raises(ValueError, match="pull before the push"):
        shard.push(0, gradient)
    assert shard.pull(0).version == 8
    assert shard.push(0, gradient).wait().version == 9
    assert shard.status().counts.stalest <= 1


def test_departed_trainer_is_reported_in_step() -> None:
    held = shard()
    held.pull(0), held.pull(1)
    waits = pushed(held, 0, 1.0)
    held.leave(1)
    assert held.pull(0)[0] == 0, "nothing was applied"
    for act in (waits.wait, lambda: pushed(held, 0, 1.0)):
        with pytest.raises(TrainerLeftError, match="trainer-1 has left, and pushes no more gradients"):
            act()


def test_trainers_wait_until_the_first_has_loaded() -> None:
    held = Shard({"w": torch.zeros(2)}, PLAIN, 2, None)
    let_in = held.begun()
    assert not let_in.done()
    assert held.status().missing == [0]
    options = held.state()["options"]
    held.begin({"parameters": {"w": torch.ones(2)}, "optimizer": {"w": {}}, "options": options, "updates": 7})
    assert let_in.wait() == 7
    with pytest.raises(ValueError, match="trainer-0 has other parameters than the server: pull"):
        pushed(held, 0, 1.0)
    assert held.pull(0).parameters["w"].tolist() == [1, 1]
    held.pull(1)
    first, second = pushed(held, 0, 1.0), pushed(held, 1, 1.0)
    assert [answer.wait().version for answer in (first, second)] == [8, 8]
    assert held.status().counts == Counts(1, 2, 0, 0)


def test_one_update_stops_all_trainers() -> None:
    held = shard()
    held.pull(0), held.pull(1)
    first = pushed(held, 0, 1.0)
    held.stop()
    assert [answer.wait().stop for answer in (first, pushed(held, 1, 1.0))] == [True, True]
    held.acknowledge()
    held.leave(0)
    held.leave(1)
    assert (held.status().here, held.status().stopped) == ([], True)


def test_loss_is_reported_to_waiting_and_new_trainers() -> None:
    held = shard(3)
    for trainer in range(3):
        held.pull(trainer)
    waits = pushed(held, 0, 1.0)
    assert held.status().ignorant == [0, 1, 2]
    held.close("trainer-2 has died")
    comes = pushed(held, 1, 1.0)
    for answer in (waits, comes):
        with pytest.raises(ServerClosedError, match="trainer-2 has died"):
            answer.wait()
    assert (held.status().ignorant, held.status().version) == ([2], 0)
    unbegun = Shard({"w": torch.zeros(2)}, PLAIN, 1, None)
    let_in = unbegun.begun()
    unbegun.close("trainer-0 has died")
    with pytest.raises(ServerClosedError, match="trainer-0 has died"):
        let_in.wait()


def test_an_optimizer_failure_is_reported_to_all() -> None:
    held = shard(make=torch.optim.LBFGS)
    held.pull(0), held.pull(1)
    answers = [pushed(held, 0, 1.0), pushed(held, 1, 1.0)]
    for answer in answers:
        with pytest.raises(TypeError, match="closure"):
            answer.wait()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda held: held.push(0, {"v": torch.ones(2)}), "differ in v, w"),
        (lambda held: held.push(0, {"w": torch.ones(3)}), r"gradient of w is \(3,\)"),
        (lambda held: held.push(0, {"w": torch.ones(2).double()}), "of torch.float64, and the parameter is"),
        (lambda held: pushed(held, 1, 1.0), "trainer-1 has other parameters than the server: pull"),
        (lambda held: (pushed(held, 0, 1.0), pushed(held, 0, 1.0)), "trainer-0 has a gradient waiting"),
        (lambda held: held.begin(held.state()), "the training has started already: load a state before"),
        (lambda held: held.pull(7), "there is no trainer-7"),
        (lambda held: held.configure({"rate": 1}), "no option rate: it has .*lr"),
        (
            lambda _: Shard({"w": torch.zeros(2)}, PLAIN, 1, None).begin({"parameters": {}}),
            "w has shape .*checkpoint no",
        ),
        (lambda _: shard(3, staleness=1), "staleness must be from 2 on"),
    ],
)
def test_what_a_server_refuses(act: Callable[[Shard], object], message: str) -> None:
    held = shard()
    held.pull(0)
    with pytest.raises(ValueError, match=message):
        act(held)


@pytest.mark.parametrize(
    "made_of",
    [
        lambda given: torch.optim.SGD([{"params": given[:1]}, {"params": given[1:], "lr": 0.2}], lr=0.1),
        lambda given: torch.optim.SGD(given[::-1], lr=0.1),
        lambda given: torch.optim.SGD(given[:1], lr=0.1),
    ],
    ids=["groups", "another order", "not all"],
)
def test_optimizer_without_restore_is_refused_at_once(made_of: Callable[[Any], Any]) -> None:
    parameters = {"weight": torch.ones(2), "bias": torch.zeros(1)}
    with pytest.raises(ValueError, match="must have all parameters of its server in one group, in the order"):
        ParameterStore(parameters, made_of)
