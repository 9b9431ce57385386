"""One tiny transformer, trained for some steps under any layout, with the same samples in each step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everywhere
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from trainyard_torch import (
    Pipeline,
    clip_grad_norm_,
    gradient_sync,
    group_by_mesh,
    pipeline_stages,
    replicate,
    shard,
    tensor_parallel,
)
from trainyard_torch.data import Batches, SampleOrder
from trainyard_torch.mesh import Parallelism, data_shard, submesh

if TYPE_CHECKING:
    from trainyard_torch.data import MicroBatch
    from trainyard_torch.parallel.pipeline import Schedule

WORDS, WIDTH, LENGTH, HEADS, LAYERS = 11, 8, 6, 2, 2
STEPS = 50
LONGEST = 0.5  # of the gradient: some steps are over it, some not

PLAN: dict[str, ParallelStyle] = {
    "*.query": ColwiseParallel(),
    "*.key": ColwiseParallel(),
    "*.value": ColwiseParallel(),
    "*.mix": RowwiseParallel(),
    "*.up": ColwiseParallel(),
    "*.down": RowwiseParallel(),
}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.mix = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        # As many heads as this process has.
        heads = [
            part(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.query, self.key, self.value)
        ]
        x = x + self.mix(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


def transformer(seed: int = 7) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH), *(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
    )
    return model.double()


def mean_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def texts(numbers: np.ndarray[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and the word after each, shape (n, LENGTH)."""
    start = torch.from_numpy(numbers)[:, None]
    words = (start * 5 + torch.arange(LENGTH + 1) ** 2 * (start % 3 + 1)) % WORDS
    return words[:, :-1], words[:, 1:]


ALONE = Parallelism()


@dataclass(frozen=True)
class Layout:
    """How a run is spread.

    Attributes:
        sizes: tensor, pipeline and so on.
        data: keywords of `shard`; None: `replicate`.
        batch: samples of a step.
        micro: samples that go through the model at once.
        stages_per_rank: stages of a process.
        schedule: of the pipeline.
    """

    sizes: Parallelism = ALONE
    data: dict[str, Any] | None = None
    batch: int = 12
    micro: int = 6
    stages_per_rank: int = 1
    schedule: Schedule | None = None


@dataclass(frozen=True)
class Run:
    """The loss of each step, the gradient's norm, and the parameters in the end."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, np.ndarray[Any, Any]]


class Training:
    """A run that is laid out like this, by all ranks of the process group. `losses`: for who wants to keep some.

    Args:
        layout: how.
        seed: of the weights: another one for a run that gets them from a checkpoint.
    """

    def __init__(self, layout: Layout, seed: int = 7) -> None:
        self.mesh = mesh = layout.sizes.mesh(dist.get_world_size(), "cpu")
        model = tensor_parallel(transformer(seed), mesh, PLAN)
        parts = (
            pipeline_stages(model, mesh, stages_per_rank=layout.stages_per_rank, schedule=layout.schedule)
            if layout.sizes.pipeline > 1
            else [model]
        )
        spread = (
            partial(replicate, mesh=mesh, bucket_cap_mb=0.001)
            if layout.data is None
            else lambda part: shard(part, mesh, blocks=[m for m in part if isinstance(m, Layer)], **(layout.data or {}))
        )
        self.modules = [spread(part) for part in parts]
        self._parameters = [parameter for module in self.modules for parameter in module.parameters()]
        self.optimizer = torch.optim.AdamW(
            [{"params": group} for group in group_by_mesh(self._parameters)], lr=0.01, foreach=True
        )
        self.losses: list[float] = []
        self._batches = Batches(SampleOrder(40, seed=3), layout.batch, layout.micro)
        self._pipeline = None
        if layout.sizes.pipeline > 1:
            share = layout.batch // data_shard(mesh).world_size
            self._pipeline = Pipeline(
                self.modules, mean_loss, mesh, n_microbatches=share // layout.micro, schedule=layout.schedule
            )

    def steps(self, first: int, last: int) -> tuple[list[float], list[float]]:
        """The losses of these steps, counted from 1 on, and the norms of their gradients."""
        found = [
            self._step(self._batches.after(number - 1).step(data_shard(self.mesh))) for number in range(first, last + 1)
        ]
        return [loss for loss, _ in found], [norm for _, norm in found]

    def parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """All of them, whole, on each rank."""
        own = {}
        for module in self.modules:
            for name, parameter in module.named_parameters():
                whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                own[name.removeprefix("module.")] = whole.detach().numpy()
        words: list[Any] = [None] * self.mesh["pipeline"].size()
        dist.all_gather_object(words, own, group=self.mesh["pipeline"].get_group())
        return {name: value for word in words for name, value in word.items()}

    def _step(self, micro_batches: list[MicroBatch]) -> tuple[float, float]:
        if self._pipeline:
            inputs, target = texts(np.concatenate([micro.samples for micro in micro_batches]))
            loss = self._pipeline.step(inputs, target)
        else:
            loss = torch.zeros((), dtype=torch.float64)
            for micro in micro_batches:
                inputs, target = texts(micro.samples)
                with gradient_sync(self.modules[0], micro.last):
                    part = mean_loss(self.modules[0](inputs), target) * micro.weight
                    part.backward()
                loss += part.detach()
        norm = float(clip_grad_norm_(self._parameters, self.mesh, LONGEST))
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(loss, group=submesh(self.mesh, "data").get_group())
        return float(loss) / data_shard(self.mesh).world_size, norm


def train(layout: Layout) -> Run:
    """By all ranks of the process group; all of them know the same in the end."""
    training = Training(layout)
    losses, norms = training.steps(1, STEPS)
    return Run(losses, norms, training.parameters())


def trained(layouts: list[Layout]) -> list[Run]:
    return [train(layout) for layout in layouts]
