"""DiLoCo against its own definition, over a few tiny islands."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.library.support.processes import run
from trainyard_torch.communication import diloco as module
from trainyard_torch.communication.diloco import DiLoCo
from trainyard_torch.communication.replica_group import ReplicaGroupState, join_replica_group

ELEMENTS = 6 * 5 + 5 + 5 * 3 + 3


class Training:
    """Two layers in fp64 with Adam inside, each process on samples of its own."""

    def __init__(self, islands: int, optimizer: type[torch.optim.Optimizer] = torch.optim.Adam, **options: Any) -> None:
        self.island = join_replica_group(islands)
        # Another one on each process: DDP and DiLoCo have to make them alike.
        torch.manual_seed(dist.get_rank())
        network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        alone = self.island.layout.size == 1
        self.model = network if alone else DistributedDataParallel(network, process_group=self.island.intra_group)
        self.optimizer = optimizer(self.model.parameters(), lr=0.02)  # type: ignore[call-arg]
        self.outer = DiLoCo(self.model, self.island, **options)
        self.own = ReplicaGroupState(self.model, self.optimizer, self.island)
        self.exchanged: list[bool] = []

    def train(self, first: int, last: int) -> "Training":
        for step in range(first, last):
            mixed = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
            x, y = (torch.randn(4, width, generator=mixed, dtype=torch.float64) for width in (6, 3))
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
            self.exchanged.append(self.outer.step())
        return self

    @property
    def weights(self) -> np.ndarray:
        return torch.cat([value.detach().flatten().clone() for value in self.model.parameters()]).numpy()


def averages(islands: int) -> list[float]:
    """How far the model is from the mean over islands after each step, with an exchange in each."""
    far = []
    ours = Training(islands, torch.optim.SGD, sync_every=1, outer_lr=1.0, outer_momentum=0.0)
    theirs = Training(islands, torch.optim.SGD, sync_every=10**6)
    for step in range(5):
        ours.train(step, step + 1)
        theirs.train(step, step + 1)
        with torch.no_grad():
            for value in theirs.model.parameters():
                dist.all_reduce(value)
                value.div_(dist.get_world_size())
        far.append(float(np.abs(ours.weights - theirs.weights).max()))
    return far


@pytest.mark.parametrize(("world_size", "islands"), [(2, 2), (4, 2), (3, 1)])
def test_rate_1_without_momentum_averages_each_step(tmp_path: Path, world_size: int, islands: int) -> None:
    assert np.max(run(world_size, tmp_path, averages, islands)) < 1e-14


def against_the_paper() -> tuple[np.ndarray, np.ndarray, list[bool]]:
    """Two rounds of three steps: algorithm 1, with the outer step written out."""
    one = Training(2, sync_every=3, outer_lr=0.7, outer_momentum=0.9)
    local = Training(2, sync_every=10**6)
    begin = one.weights
    velocity = np.zeros_like(begin)
    for first in (0, 3):
        torch.nn.utils.vector_to_parameters(torch.from_numpy(begin.copy()), local.model.parameters())
        local.train(first, first + 3)
        every: list[Any] = [None, None]
        dist.all_gather_object(every, local.weights)
        change = begin - (every[0] + every[1]) / 2
        velocity = 0.9 * velocity + change
        begin = begin - 0.7 * (change + 0.9 * velocity)
    one.train(0, 6)
    return one.weights, begin, one.exchanged


def test_a_round_is_that_of_the_paper(tmp_path: Path) -> None:
    for found, expected, exchanged in run(2, tmp_path, against_the_paper):
        assert np.allclose(found, expected, rtol=0, atol=1e-14)
        assert exchanged == [False, False, True] * 2


def sent(every: int, islands: int) -> tuple[int, np.ndarray]:
    # So few at once that there are several messages.
    module.MESSAGE = 20
    one = Training(islands, sync_every=every).train(0, 12)
    return one.outer.sent_bytes, one.weights


def test_bytes_decrease_with_round_length(tmp_path: Path) -> None:
    often, seldom = run(2, tmp_path, sent, 1, 2), run(2, tmp_path, sent, 6, 2)
    assert often[0][0] == 12 * 8 * ELEMENTS == 6 * seldom[0][0]
    shared = run(4, tmp_path, sent, 6, 2)
    # Each of the two processes of an island sends its half, rounded up in each of the messages.
    assert 2 * 8 * ELEMENTS / 2 <= shared[0][0] <= 2 * 8 * (ELEMENTS / 2 + 4)
    assert all(np.array_equal(weights, shared[0][1]) for _, weights in shared), "all are alike after an exchange"


def resumed(folder: str, saved: int) -> tuple[np.ndarray, np.ndarray]:
    one = Training(2, sync_every=4).train(0, saved)
    dcp.save({"outer": one.outer, "own": one.own}, checkpoint_id=folder)
    other = Training(2, sync_every=4)
    dcp.load({"outer": other.outer, "own": other.own}, checkpoint_id=folder)
    return one.train(saved, 10).weights, other.train(saved, 10).weights


@pytest.mark.parametrize("saved", [4, 6])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, saved: int) -> None:
    weights = run(2, tmp_path, resumed, str(tmp_path / "c"), saved)
    for undisturbed, after in weights:
        assert np.array_equal(undisturbed, after)
    assert not np.array_equal(weights[0][0], weights[1][0]), "in the middle of a round islands differ"


def save(folder: str) -> np.ndarray:
    one = Training(2, torch.optim.SGD, sync_every=4).train(0, 4)
    assert one.outer.synchronized
    dcp.save({"model": one.model, "outer": one.outer, "own": one.own}, checkpoint_id=folder)
    return one.weights


def load(folder: str) -> tuple[np.ndarray, int]:
    one = Training(3, torch.optim.SGD, sync_every=4)
    dcp.load({"model": one.model, "outer": one.outer}, checkpoint_id=folder)
    return one.weights, one.outer.steps


def test_another_number_of_islands_goes_on(tmp_path: Path) -> None:
    folder = str(tmp_path / "c")
    expected = run(2, tmp_path, save, folder)[0]
    for weights, steps in run(3, tmp_path, load, folder):
        assert np.array_equal(weights, expected)
        assert steps == 4


def refused() -> list[str]:
    message = []
    one = Training(2)
    state = one.outer.state_dict()
    state["parameters"] = {"other": torch.zeros(1)}
    for act in (
        lambda: Training(2, sync_every=0),
        lambda: Training(2, outer_lr=0.0),
        lambda: Training(2, outer_momentum=1.0),
        lambda: DiLoCo(nn.Linear(1, 1), join_replica_group(1)),
        lambda: one.outer.load_state_dict(state),
        lambda: one.own.load_state_dict({}),
    ):
        try:
            act()
        except ValueError as error:
            message.append(str(error))
    return message


def test_impossible_options_are_reported(tmp_path: Path) -> None:
    every, rate, momentum, bare, other, own = run(2, tmp_path, refused)[0]
    assert every == "sync_every must be from 1 on, not 0"
    assert rate == "outer_lr must be positive, not 0.0"
    assert momentum == "outer_momentum must be from 0 to less than 1, not 1.0"
    assert (
        "a replica group has 2: wrap it with DistributedDataParallel(model, process_group=replica_group.intra_group)"
        in bare
    )
    assert "of another model: 0.bias is in one of them only" in other
    assert "has no replica_group_0: leave the state of replica groups out" in own
