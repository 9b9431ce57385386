"""Local and hierarchical SGD: what torch's parts do together is what the papers say, here computed by hand."""

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
from trainyard_torch.communication.averaging import ModelAveraging, hierarchical_sgd, local_sgd
from trainyard_torch.communication.replica_group import join_replica_group

WIDTH, RATE = 5, 0.1


def target(rank: int, step: int) -> torch.Tensor:
    """What the parameters of this process are drawn to in this step."""
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(100 * rank + step), dtype=torch.float64)


def wrapped(**options: Any) -> DistributedDataParallel:
    model = nn.Linear(WIDTH, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    return DistributedDataParallel(model, **options)


def train(model: DistributedDataParallel, averaging: ModelAveraging, first: int, last: int) -> list[list[float]]:
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    seen = []
    for step in range(first, last):
        optimizer.zero_grad()
        # The gradient is weight - target: through the model, so that DDP sees it.
        rows = torch.eye(WIDTH, dtype=torch.float64)
        ((model(rows).flatten() - target(dist.get_rank(), step)) ** 2).sum().div(2).backward()
        optimizer.step()
        size = averaging.step()
        seen.append([size, *model.module.weight.detach().flatten().tolist()])
    return seen


def by_hand(world_size: int, inside: int, levels: dict[int, int], warmup: int, steps: int) -> np.ndarray:
    """Of shape (world, steps, 1 + WIDTH), as `train` gives it."""
    weights, seen = torch.zeros(world_size, WIDTH, dtype=torch.float64), []
    for step in range(steps):
        change = weights - torch.stack([target(rank, step) for rank in range(world_size)])
        together = world_size if step < warmup else inside
        weights = weights - RATE * change.view(-1, together, WIDTH).mean(1, keepdim=True).expand(
            -1, together, -1
        ).reshape(world_size, WIDTH)
        due = [size for period, size in levels.items() if (step + 1) % period == 0 and step + 1 >= warmup]
        if due:
            weights = (
                weights.view(-1, due[-1], WIDTH)
                .mean(1, keepdim=True)
                .expand(-1, due[-1], -1)
                .reshape(world_size, WIDTH)
            )
        size = torch.full((world_size, 1), due[-1] if due else 0, dtype=torch.float64)
        seen.append(torch.cat([size, weights], 1))
    return torch.stack(seen, 1).numpy()


def averaged(islands: int, levels: dict[int, int], warmup: int) -> list[list[float]]:
    model = wrapped()
    island = join_replica_group(islands)
    if len(levels) == 1:
        averaging = local_sgd(model, island, period=min(levels), warmup_steps=warmup)
    else:
        averaging = hierarchical_sgd(model, island, levels=levels, warmup_steps=warmup)
    return train(model, averaging, 0, 12)


@pytest.mark.parametrize(
    ("islands", "levels", "warmup"),
    [(4, {3: 4}, 0), (2, {4: 4}, 5), (4, {2: 2, 4: 4}, 0), (4, {2: 2, 6: 4}, 3)],
)
def test_as_by_hand(tmp_path: Path, islands: int, levels: dict[int, int], warmup: int) -> None:
    found = np.array(run(4, tmp_path, averaged, islands, levels, warmup))
    assert np.allclose(found, by_hand(4, 4 // islands, levels, warmup, 12), rtol=0, atol=1e-14)


def resumed(folder: str) -> tuple[list[list[float]], list[list[float]], list[bool]]:
    model = wrapped()
    averaging = local_sgd(model, join_replica_group(2), period=4, warmup_steps=2)
    equal = []
    for step in range(4):
        train(model, averaging, step, step + 1)
        equal.append(averaging.synchronized)
    dcp.save({"model": model.module, "averaging": averaging}, checkpoint_id=folder)
    undisturbed = train(model, averaging, 4, 10)
    model = wrapped()
    averaging = local_sgd(model, join_replica_group(2), period=4, warmup_steps=2)
    dcp.load({"model": model.module, "averaging": averaging}, checkpoint_id=folder)
    return undisturbed, train(model, averaging, 4, 10), equal


def test_a_resumed_run_averages_when_the_other_would(tmp_path: Path) -> None:
    for undisturbed, after, equal in run(2, tmp_path, resumed, str(tmp_path / "c")):
        assert undisturbed == after
        assert [row[0] for row in after] == [0, 0, 0, 2, 0, 0]
        assert equal == [True, True, False, True]


def refused() -> list[str]:
    alone, pair = join_replica_group(2), join_replica_group(1)
    small = DistributedDataParallel(nn.Linear(1, 1), process_group=alone.intra_group)
    norms = DistributedDataParallel(nn.BatchNorm1d(1))
    idle = local_sgd(wrapped(), pair, period=2)
    logged = []
    for act in (
        lambda: local_sgd(nn.Linear(1, 1), pair, period=2),  # type: ignore[arg-type]  # that is the test
        lambda: local_sgd(small, alone, period=2),
        lambda: local_sgd(norms, alone, period=2),
        lambda: local_sgd(wrapped(), alone, period=2, warmup_steps=-1),
        lambda: local_sgd(wrapped(), alone, period=0),
        idle.step,
        lambda: join_replica_group(3),
    ):
        try:
            act()
        except ValueError as error:
            logged.append(str(error))
    return logged


def test_what_cannot_be_averaged_is_reported(tmp_path: Path) -> None:
    plain, small, norms, warmup, period, idle, islands = run(2, tmp_path, refused)[0]
    assert "must be wrapped in DistributedDataParallel, got a Linear" in plain
    assert "wrapped over 1 of 2 processes" in small
    assert "broadcast_buffers=False" in norms
    assert "warmup_steps must be from 0 on, not -1" in warmup
    assert "levels must be of positive numbers" in period
    assert "no parameter has a gradient: call step after" in idle
    assert "groups must be from 1 to 2, the number of processes, not 3" in islands
