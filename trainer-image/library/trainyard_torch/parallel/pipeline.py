"""Pipeline parallel: the layers spread over processes in stages, micro-batches on their way through them (1F1B, interleaved).

A stage takes one tensor and gives one, of the same shape for every micro-batch. Batches are made elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch.mesh import size
from trainyard_torch.parallel.torch_compat import own_last_output, wait_for_whole_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def pipeline_stages(model: nn.Sequential, mesh: DeviceMesh, *, stages_per_rank: int = 1) -> list[nn.Sequential]:
    """This process's stages of the model: consecutive parts, as even in parameters as their order allows.

    They keep the names that they have in the model: state dicts of all stages together are that of the model, so that a checkpoint loads at
    any number of stages. Stage s lies on rank s % p of the p in `mesh["pipeline"]`.

    Args:
        model: its parts in order; on the meta device, stages of other processes take no memory.
        mesh: that of `Parallelism.mesh`.
        stages_per_rank: stages of each process; from 2 on for interleaved 1F1B.

    Raises:
        ValueError: the model is no Sequential, or has fewer parts than there are stages; or two stages share a parameter.
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
    return cut[mesh["pipeline"].get_local_rank() :: ranks]


def cuts(sizes: Sequence[int], count: int) -> list[int]:
    """Return where each of `count` runs of consecutive non-empty parts ends, so that the heaviest run is as light as possible.

    Args:
        sizes: of each part; `count` of them at least.
        count: of runs, from 1 on.
    """
    total = [0]
    for part in sizes:
        # A part without parameters costs time too.
        total.append(total[-1] + max(part, 1))
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for runs in range(1, count + 1):
        # To each end so far: the heaviest run, and where they all end.
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
    ) -> None:
        """Stages that are wrapped already (`replicate` or `shard`, each by itself).

        One stage a process is 1F1B, more are interleaved 1F1B: a smaller bubble, more messages.
        Source: Narayanan et al. 2021, Efficient large-scale language model training on GPU clusters.

        Args:
            modules: this process's, in order, as many as each other process has.
            loss: the mean over the samples of a micro-batch, from the last stage's output and the target.
            mesh: that of `Parallelism.mesh`.
            n_microbatches: into how many equal parts a process's samples of a step are cut: from the number of processes in the pipeline
                on, better four times that.
            device: where the stages are; None: the current one of the mesh's type.

        Raises:
            ValueError: there are too few micro-batches, or they do not fit the schedule.
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
        here = mesh["pipeline"].get_local_rank()
        made = [
            PipelineStage(module, here + turn * ranks, own * ranks, self._device, group=group)
            for turn, module in enumerate(self.modules)
        ]
        self._first, self._last = made[0].is_first, made[-1].is_last
        if self._last:
            own_last_output(self.modules[-1])
        kind = ScheduleInterleaved1F1B if own > 1 else Schedule1F1B
        # Newer ones divide gradients by the number of micro-batches, and cannot know of a weight; here the loss is divided.
        unscaled = _supported(kind, scale_grads=False)
        self._schedule = kind(made if own > 1 else made[0], n_microbatches, loss_fn=self._weighted, **unscaled)
        # The outputs are unused; older versions of torch collect them anyway.
        self._quiet = _supported(self._schedule.step, return_outputs=False)

    def step(self, inputs: torch.Tensor, target: torch.Tensor, *, weight: float = 1.0) -> torch.Tensor:
        """The loss of this process's samples, and their gradients in the parameters: exchanged with the other data-parallel processes.

        To be called by all processes of a pipeline with the same samples; only the first stage looks at the inputs, only the last at
        the target.

        Args:
            inputs: what the first stage takes, shape (n, ...): n is a multiple of the number of micro-batches, and the same in all steps.
            target: what the loss takes, shape (n, ...).
            weight: what the gradients are multiplied with: `MicroBatch.weight`.

        Returns:
            The mean loss of the n samples, without the weight, on all stages; no gradient.

        Raises:
            ValueError: the number of samples is not as it has to be.
        """
        self._check_samples(len(inputs), len(target))
        self._weight = weight
        # Torch compares strides with those of an empty tensor.
        own = (inputs.contiguous(),) if self._first else ()
        with wait_for_whole_batches(), ExitStack() as unsynchronised:
            for module in self.modules:
                if isinstance(module, DistributedDataParallel):
                    # Newer ones run each stage once by itself, to learn its shapes, which DDP would take for the step it has to average.
                    # The last backward pass of a step averages all the same: torch's schedule asks DDP's reducer for it.
                    unsynchronised.enter_context(module.no_sync())
            self._schedule.step(*own, target=target if self._last else None, **self._quiet)
        mean_loss = torch.zeros((), dtype=torch.float64, device=self._device)
        if self._last:
            # To learn shapes, newer ones ask for a loss of their own before the first step.
            mean_loss += torch.stack(self._losses[-self._n_microbatches :]).mean()
            self._losses.clear()
        # This does not delay the first stage: the last loss is computed before the last backward pass.
        dist.broadcast(
            mean_loss, src=dist.get_global_rank(self._group, dist.get_world_size(self._group) - 1), group=self._group
        )
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
            # Torch fixes the shapes in the first step; in a stage that receives others it would hang.
            raise ValueError(
                f"this step has {inputs} samples, and the first had {self._samples}: all steps must have as many"
            )
        self._samples = inputs


def _supported(call: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return those keyword arguments that this torch release accepts."""
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


def _current(device_type: str) -> torch.device:
    # gpu-only: stages on GPUs
    return torch.device("cuda", torch.cuda.current_device()) if device_type == "cuda" else torch.device(device_type)
