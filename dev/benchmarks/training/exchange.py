"""`python -m dev.benchmarks.training.exchange`: one training by each way to communicate, in turns. Run by all its processes, in two islands.

Same model, same samples for each process, same number of them. The first process reads what goes over its interface, to and fro, and prints a
line of JSON for each way. What is not training (to make the model, to look how good it is) is neither timed nor counted.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dev.benchmarks.options import some_of, turns
from dev.benchmarks.training.figures import DDP
from trainyard_torch import (
    DiLoCo,
    PowerSGD,
    Training,
    compress,
    hierarchical_sgd,
    join_replica_group,
    local_sgd,
    replicate,
    start,
)

INPUTS: Final = 64
WIDTH: Final = 256
KINDS: Final = 10
SHARE: Final = 32
"""Samples of a step for each process."""
ISLANDS: Final = 2
ROUND: Final = 16
"""Steps from one look at the model to the next; all ways that average now and then have done so then."""
TEST: Final = 2048
RATE: Final = 2e-3


@dataclass(frozen=True, slots=True)
class Made:
    """A model that is ready to be trained in some way.

    Attributes:
        model: to call.
        after: what is done after each step of the optimizer, before gradients are set to None.
    """

    model: Any
    after: Callable[[], object] = lambda: None


def network() -> Any:
    """85,000 parameters, the same each time."""
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, KINDS))
    )


def compressed(training: Training, how: Any) -> Made:
    """DDP, its gradients in fewer bytes."""
    model = replicate(network(), training.mesh)
    compress(model, how)
    return Made(model)


def averaged(training: Training) -> Made:
    """Gradients inside an island in each step, parameters between islands every 8 steps."""
    model = replicate(network(), training.mesh)
    return Made(model, local_sgd(model, join_replica_group(ISLANDS), period=8).step)


def by_levels(training: Training) -> Made:
    """No gradients at all: parameters inside an island every 2 steps, between islands every 16."""
    model = replicate(network(), training.mesh)
    world = training.process.world_size
    return Made(
        model,
        hierarchical_sgd(model, join_replica_group(world), levels={2: world // ISLANDS, 16: world}).step,
    )


def diloco(_: Training) -> Made:
    """DDP inside an island, DiLoCo between islands, in rounds of 16 steps."""
    island = join_replica_group(ISLANDS)
    model = DistributedDataParallel(network(), process_group=island.intra_group)
    return Made(model, DiLoCo(model, island, sync_every=16).step)


WAYS: Final[Mapping[str, Callable[[Training], Made]]] = {
    DDP: lambda training: compressed(training, "none"),
    "fp16": lambda training: compressed(training, "fp16"),
    "bf16": lambda training: compressed(training, "bf16"),
    "PowerSGD": lambda training: compressed(training, PowerSGD(rank=4, start_step=10)),
    "local SGD": averaged,
    "hierarchical": by_levels,
    "DiLoCo": diloco,
}


def data(seed: int, count: int) -> tuple[Any, Any]:
    """Samples of shape (count, INPUTS), and for each the kind that it is of."""
    teacher = torch.Generator().manual_seed(0)
    first, second = torch.randn(INPUTS, 32, generator=teacher), torch.randn(32, KINDS, generator=teacher)
    inputs = torch.randn(count, INPUTS, generator=torch.Generator().manual_seed(seed))
    return inputs, (torch.tanh(inputs @ first / 4) @ second).argmax(1)


def passed(interface: str, table: Path = Path("/proc/net/dev")) -> int:
    """Bytes that went over the interface so far, to and fro.

    Raises:
        ValueError: there is no such interface.
    """
    for line in table.read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == interface:
            fields = figures.split()
            return int(fields[0]) + int(fields[8])
    raise ValueError(f"there is no interface {interface}")


def train(training: Training, way: str, steps: int, interface: str) -> dict[str, Any]:
    """How it went: seconds and bytes of all steps, and the loss after so many seconds, each ROUND."""
    made = WAYS[way](training)
    optimizer = torch.optim.AdamW(made.model.parameters(), lr=RATE)
    test = data(10**9, TEST)
    seconds, sent = 0.0, 0
    curve: list[list[float]] = []
    for first in range(0, steps, ROUND):
        batches = [
            data(step * training.process.world_size + training.process.rank, SHARE)
            for step in range(first, first + ROUND)
        ]
        dist.barrier()
        before, began = passed(interface), time.perf_counter()
        for inputs, kinds in batches:
            cross_entropy(made.model(inputs), kinds).backward()
            optimizer.step()
            made.after()
            optimizer.zero_grad()
        dist.barrier()
        seconds += time.perf_counter() - began
        sent += passed(interface) - before
        with torch.no_grad():
            # Past the wrapper: it would exchange.
            loss = cross_entropy(made.model.module(test[0]), test[1]) / training.process.world_size
        dist.all_reduce(loss)
        curve.append([seconds, float(loss)])
    return {"way": way, "steps": len(curve) * ROUND, "seconds": seconds, "bytes": sent, "curve": curve}


def main() -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.training.exchange", description=__doc__)
    parser.add_argument("--ways", type=lambda text: some_of(list(WAYS), text), default=list(WAYS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--interface", default="lo")
    options = parser.parse_args()
    with start(seed=1) as training:
        for repeat in range(options.repeats):
            for way in turns(options.ways, repeat):
                found = train(training, way, options.steps, options.interface)
                if training.is_rank0:
                    print(json.dumps({"exchanged": {**found, "turn": repeat}}), flush=True)  # noqa: T201 - read by the parent process
    return 0


if __name__ == "__main__":
    sys.exit(main())
