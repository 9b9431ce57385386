"""Pipeline parallel: stages of layers on several processes, with micro-batches passing through them (1F1B, interleaved).

A stage takes one tensor and returns one, of the same shape for every micro-batch. Batches are made elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch.mesh import size
from trainyard_torch.parallel.torch_compat import own_last_output, wait_for_whole_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh

Schedule = Literal["1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"]
"""torch's names of schedules."""
SCHEDULES = {
    "1F1B": Schedule1F1B,
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "InterleavedZeroBubble": ScheduleInterleavedZeroBubble,
    "ZBVZeroBubble": ScheduleZBVZeroBubble,
}
STAGE_NUMBERS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""The numbers of the stages that `pipeline_stages` has cut."""
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def pipeline_stages(
    model: nn.Sequential, mesh: DeviceMesh, *, stages_per_rank: int = 1, schedule: Schedule | None = None
) -> list[nn.Sequential]:
    """Return this process's stages of the model: consecutive parts, balanced by parameters as far as their order allows.

    Parts keep their names in the model. So the state dicts of all stages together are that of the model, and a checkpoint loads at any number
    of stages. Stage s is on rank s % p of the p ranks in `mesh["pipeline"]`. For ZBVZeroBubble, rank r has the stages r and 2 p - 1 - r.

    Args:
        model: a Sequential of the parts. On the meta device, stages of other processes take no memory.
        mesh: the mesh of `Parallelism.mesh`.
        stages_per_rank: the stages of each process; 2 or more for interleaved 1F1B, 2 for ZBVZeroBubble.
        schedule: that of `Pipeline`.

    Raises:
        ValueError: the model is no Sequential, has fewer parts than stages, or two stages share a parameter.
    """
    ranks = size(mesh, "pipeline")
    if stages_per_rank < 1:
        raise ValueError(f"stages_per_rank must be from 1 on, not {stages_per_rank}")
    if not isinstance(model, nn.Sequential):
        raise ValueError(  # noqa: TRY004 - to cut it up is the caller's choice
            f"a {type(model).__name__} cannot be cut into stages: make it an nn.Sequential, or give Pipeline stages of your own"
        )
    count = ranks * stages_per_rank
    parts = list(model.named_children())
    if len(parts) < count:
        raise ValueError(f"{len(parts)} parts cannot be cut into {count} stages: use fewer stages, or smaller parts")
    ends = cuts([sum(parameter.numel() for parameter in part.parameters()) for _, part in parts], count)
    cut = [nn.Sequential(OrderedDict(parts[begin:end])) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    owner: dict[nn.Parameter, int] = {}
    for number, stage in enumerate(cut):
        for name, parameter in stage.named_parameters():
            if owner.setdefault(parameter, number) != number:
                raise ValueError(
                    f"stages {owner[parameter]} and {number} share the parameter {name} (tied weights): "
                    "untie it, or use fewer stages"
                )
    numbers = stage_numbers(mesh["pipeline"].get_local_rank(), ranks, stages_per_rank, schedule)
    STAGE_NUMBERS.update({cut[number]: number for number in numbers})
    return [cut[number] for number in numbers]


def stage_numbers(rank: int, ranks: int, own: int, schedule: Schedule | None) -> list[int]:
    """Return the numbers of a rank's stages, in order. Raises ValueError if the schedule needs another number of them."""
    if schedule is not None and schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
    if schedule == "1F1B" and own > 1:
        raise ValueError(f"1F1B has one stage for each process, and not {own}: use Interleaved1F1B")
    if schedule in ("InterleavedZeroBubble", "Interleaved1F1B") and own < 2:
        raise ValueError(f"{schedule} needs at least two stages for each process: pass stages_per_rank=2")
    if schedule == "ZBVZeroBubble":
        if not supports_zbv():
            raise ValueError(
                f"torch {torch.__version__} cannot run ZBVZeroBubble, since it sends between stages of one process: use torch 2.15"
            )
        if own != 2:
            raise ValueError(f"ZBVZeroBubble has two stages for each process, and not {own}")
        return [rank, 2 * ranks - 1 - rank]
    return [rank + turn * ranks for turn in range(own)]


def supports_zbv() -> bool:
    """Return whether torch's ZBV schedule passes tensors between two stages of one process, which that of torch 2.6 does not."""
    return issubclass(ScheduleZBVZeroBubble, _PipelineScheduleRuntime)


def cuts(sizes: Sequence[int], count: int) -> list[int]:
    """Return the ends of `count` runs of consecutive non-empty parts, so that the largest run is as small as possible.

    Args:
        sizes: the size of each part; at least `count` of them.
        count: the number of runs, at least 1.
    """
    total = [0]
    for part in sizes:
        # A part without parameters takes time, too.
        total.append(total[-1] + max(part, 1))
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for runs in range(1, count + 1):
        # For each end so far: the largest run, and the ends of all runs.
        best = {
            end: min(
                (max(heaviest, total[end] - total[begin]), [*ends, end])
                for begin, (heaviest, ends) in best.items()
                if begin < end
            )
            for end in range(runs, len(sizes) - count + runs + 1)
        }
    return best[len(sizes)][1]


class Pipeline:
    """The stages of all processes as one model: forward and backward of a step in one call.

    Attributes:
        modules: this process's stages, for the optimizer, the checkpoint, and `clip_grad_norm_`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        loss: Loss,
        mesh: DeviceMesh,
        *,
        n_microbatches: int,
        device: torch.device | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        """Wrap stages, each of which was wrapped by `replicate` or `shard`.

        One stage per process is 1F1B, more are interleaved 1F1B: a smaller bubble, more messages.
        Source: Narayanan et al. 2021, Efficient large-scale language model training on GPU clusters.

        Args:
            modules: this process's stages in order, equally many on all processes.
            loss: returns the mean over the samples of a micro-batch, from the last stage's output and the target.
            mesh: the mesh of `Parallelism.mesh`.
            n_microbatches: the number of equal micro-batches of a process's samples in a step. Use at least the number of processes in the pipeline,
                    better four times that.
            device: the device of the stages. None: the current device of the mesh's type.
            schedule: None: 1F1B or Interleaved1F1B. InterleavedZeroBubble and ZBVZeroBubble fill the bubble with the gradients of weights
                (Qi et al. 2023, Zero bubble pipeline parallelism). They need `shard`, and stages that are not compiled.

        Raises:
            ValueError: there are too few micro-batches, or they do not fit the schedule. Or the stages are not those of the schedule.
        """
        self.modules = list(modules)
        ranks, own = size(mesh, "pipeline"), len(self.modules)
        group = mesh["pipeline"].get_group()
        _check(ranks, own, n_microbatches)
        self._group = group
        self._device = device or _current(mesh.device_type)
        self._n_microbatches = n_microbatches
        self._loss = loss
        self._weight = 1.0
        self._losses: list[torch.Tensor] = []
        self._samples = 0
        numbers = stage_numbers(mesh["pipeline"].get_local_rank(), ranks, own, schedule)
        _check_stages(self.modules, numbers, schedule)
        made = [
            PipelineStage(module, number, own * ranks, self._device, group=group)
            for number, module in zip(numbers, self.modules, strict=True)
        ]
        self._first, self._last = made[0].is_first, made[-1].is_last
        if self._last:
            own_last_output(self.modules[-1])
        # The last stage, whose loss all stages report.
        self._last_rank = 0 if schedule == "ZBVZeroBubble" else ranks - 1
        kind = SCHEDULES[schedule or ("Interleaved1F1B" if own > 1 else "1F1B")]
        # Newer releases divide gradients by the number of micro-batches, and do not know the weight; here the loss is divided.
        unscaled = _supported(kind, scale_grads=False)
        self._schedule = kind(made if own > 1 else made[0], n_microbatches, loss_fn=self._weighted, **unscaled)
        # The outputs are unused; older versions of torch collect them anyway.
        self._quiet = _supported(self._schedule.step, return_outputs=False)

    def step(self, inputs: torch.Tensor, target: torch.Tensor, *, weight: float = 1.0) -> torch.Tensor:
        """Return the loss of this process's samples. Compute their gradients, and average them over the data-parallel processes.

        All processes of a pipeline call it with the same samples. Only the first stage uses the inputs, only the last stage the target.

        Args:
            inputs: the input of the first stage, shape (n, ...). n is a multiple of the number of micro-batches, and the same in all steps.
            target: the target of the loss, shape (n, ...).
            weight: the factor for the gradients: `MicroBatch.weight`.

        Returns:
            The mean loss of the n samples without the weight, on all stages, without a gradient.

        Raises:
            ValueError: the number of samples is wrong.
        """
        self._check_samples(len(inputs), len(target))
        self._weight = weight
        # Torch compares strides with those of an empty tensor.
        own = (inputs.contiguous(),) if self._first else ()
        with wait_for_whole_batches(), ExitStack() as unsynchronised:
            for module in self.modules:
                if isinstance(module, DistributedDataParallel):
                    # Newer releases run each stage once to learn its shapes, which DDP would take for the step to be averaged.
                    # The last backward pass of a step is averaged anyway: torch's schedule asks DDP's reducer for it.
                    unsynchronised.enter_context(module.no_sync())
            self._schedule.step(*own, target=target if self._last else None, **self._quiet)
        mean_loss = torch.zeros((), dtype=torch.float64, device=self._device)
        if self._last:
            # Newer releases ask for a loss before the first step, to learn shapes.
            mean_loss += torch.stack(self._losses[-self._n_microbatches :]).mean()
            self._losses.clear()
        # This does not delay the first stage: the last loss is computed before the last backward pass.
        dist.broadcast(mean_loss, src=dist.get_global_rank(self._group, self._last_rank), group=self._group)
        return mean_loss

    def _weighted(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = self._loss(output, target)
        plain = loss.detach()
        self._losses.append(plain.full_tensor() if isinstance(plain, DTensor) else plain)
        return loss * (self._weight / self._n_microbatches)

    def _check_samples(self, inputs: int, targets: int) -> None:
        if inputs != targets:
            raise ValueError(f"inputs are {inputs} samples, and target {targets}: they must be as many")
        if inputs == 0 or inputs % self._n_microbatches:
            raise ValueError(
                f"{inputs} samples cannot be cut into {self._n_microbatches} equal micro-batches: make the batch a multiple of "
                "data-parallel processes x n_microbatches"
            )
        if self._samples not in (0, inputs):
            # Torch fixes the shapes in the first step. A stage that receives other shapes would hang.
            raise ValueError(
                f"this step has {inputs} samples, and the first had {self._samples}: all steps must have as many"
            )
        self._samples = inputs


def _supported(call: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return the keyword arguments that this torch release accepts."""
    return {name: value for name, value in options.items() if name in signature(call).parameters}


def _check(ranks: int, own: int, n_microbatches: int) -> None:
    if own == 0:
        raise ValueError("modules: a process of a pipeline has one stage at least")
    if n_microbatches < ranks:
        raise ValueError(
            f"{n_microbatches} micro-batches are too few for {ranks} processes in a pipeline, some of which would never work: "
            f"use {ranks} or more, better {4 * ranks}"
        )
    if own > 1 and n_microbatches % ranks:
        raise ValueError(
            f"interleaved stages need a multiple of {ranks} micro-batches (processes in the pipeline), and not {n_microbatches}"
        )


def _check_stages(modules: Sequence[nn.Module], numbers: Sequence[int], schedule: Schedule | None) -> None:
    for module, number in zip(modules, numbers, strict=True):
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        if (cut_as := STAGE_NUMBERS.get(inner, number)) != number:
            raise ValueError(
                f"a stage was cut as number {cut_as}, and the schedule wants number {number} there: pass the same schedule to "
                "pipeline_stages and Pipeline"
            )
        if isinstance(module, DistributedDataParallel) and schedule in ("InterleavedZeroBubble", "ZBVZeroBubble"):
            raise ValueError(
                f"{schedule} computes gradients of weights apart, which DDP does not average: use shard in place of replicate"
            )


def _current(device_type: str) -> torch.device:
    # gpu-only: stages on GPUs
    return torch.device("cuda", torch.cuda.current_device()) if device_type == "cuda" else torch.device(device_type)
