"""torch's PowerSGD with a state that survives restarts. The caller chooses the model and the first compressed step.

torch stores PowerSGD's state per bucket. DDP rebuilds its buckets after the first step of each process. So after a restart a bucket
holds other parameters than those of the stored state. Here the state is stored by parameter, and arranged for the parameters of each bucket.

The errors differ between processes, but only their mean matters. Both factors of the approximation are sums over processes, linear in
gradient plus error (the source, section 3 and lemma 3). So a checkpoint stores the mean: it is as large as one gradient, and fits
any number of processes.

Source: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from torch.futures import Future

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PowerSGD:
    """How strongly gradients are compressed.

    Attributes:
        rank: the columns of each factor, at least 1. More columns approximate better and need more bytes; 1 to 4 is usual, 32 for language models.
        start_step: the first compressed step, at least 2. Gradients change fastest early; a tenth of all steps is a good first choice.
        min_compression_rate: a matrix is compressed only if that makes it smaller than 1 / `min_compression_rate`.
        epsilon: added to the norms by which factors are divided: with 0, a gradient that is 0 becomes NaN.

    Raises:
        ValueError: a number is out of range.
    """

    rank: int = 1
    start_step: int = 1000
    min_compression_rate: float = 2.0
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        for name, least in (("rank", 1), ("start_step", 2), ("min_compression_rate", 1), ("epsilon", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be from {least} on, got {getattr(self, name)}")


class LowRank:
    """The reduction of gradients by PowerSGD for one model.

    Args:
        options: the options.
        parameters: the parameters with gradients, by name.
        group: the processes that reduce them.

    Raises:
        ValueError: a parameter is a scalar.
    """

    def __init__(self, options: PowerSGD, parameters: Mapping[str, Tensor], group: dist.ProcessGroup) -> None:
        for name, parameter in parameters.items():
            if parameter.dim() == 0:
                raise ValueError(
                    f"parameter {name} is a scalar, which torch's PowerSGD does not take: give it shape (1,)"
                )
        self._options, self._parameters, self._group = options, dict(parameters), group
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._torch = PowerSGDState(
            group,
            matrix_approximation_rank=options.rank,
            start_powerSGD_iter=options.start_step,
            min_compression_rate=options.min_compression_rate,
            orthogonalization_epsilon=options.epsilon,
        )
        self._layout: dict[int, list[str]] = {}
        self._exchanged: set[int] = set()
        # The state of parameters that are in no bucket.
        self._errors: dict[str, Tensor] = {}
        self._factors: dict[str, Tensor] = {}

    def exchange(self, bucket: dist.GradBucket) -> tuple[Future[Tensor], int]:
        """Start to reduce one bucket. Return the future, and the bytes that this process sends."""
        index, names = bucket.index(), [self._names[id(parameter)] for parameter in bucket.parameters()]
        if self._torch.iter < self._options.start_step:
            return powerSGD_hook(self._torch, bucket), bucket.buffer().nbytes
        if index == 0:
            self._exchanged.clear()
        if self._layout.get(index) != names:
            self._take_up()
            self._lay_out(index, names, bucket.buffer())
        self._exchanged.add(index)
        self._forget_what_is_not_finite(index)
        elements = sum(sum(self._sent(name)) for name in names)
        sent = elements * bucket.buffer().element_size()
        future = powerSGD_hook(self._torch, bucket)
        if bucket.buffer().device.type == "cpu" or dist.get_backend(self._group) == "gloo":
            # torch's hook waits for one collective in the callback of another. Gloo has two threads for both: two buckets at a time
            # would wait for each other for ever.
            future.wait()
        return future, sent

    def reset(self) -> None:
        """Drop all errors and factors, and continue to compress."""
        self._layout.clear()
        for memory in (self._errors, self._factors, *self._memories()):
            memory.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the same on all processes. All of the group must call it at the same time, between two steps.

        The errors of this process are replaced by their mean over all processes, here as in the checkpoint. So a run that continues and one that
        resumes are equal.
        """
        self._exchanged.clear()
        self._take_up()
        for name, parameter in self._parameters.items():
            self._errors.setdefault(
                name, torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
            )
        # One tensor after the other: a second copy of all might not fit.
        for name in self._parameters:
            dist.all_reduce(self._errors[name], group=self._group)
            self._errors[name].div_(self._group.size())
        factors = {name: self._factor(name) for name in self._parameters if self._width(name)}
        self._factors.update(factors)
        return {
            "step": self._torch.iter,
            "world_size": self._group.size(),
            "rank": self._options.rank,
            "errors": {name: error.view(self._parameters[name].shape) for name, error in self._errors.items()},
            "factors": factors,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`, with any number of processes.

        Raises:
            ValueError: it is of other parameters, or of another rank.
        """
        if state["rank"] != self._options.rank:
            raise ValueError(
                f"the checkpoint was made with PowerSGD of rank {state['rank']}, and this run has rank {self._options.rank}: make "
                "them the same, or leave the compression out of what is loaded"
            )
        if state["errors"].keys() != self._parameters.keys():
            odd = sorted(state["errors"].keys() ^ self._parameters.keys())
            raise ValueError(f"the checkpoint's PowerSGD is of another model: {odd[0]} is in one of them only")
        if state["world_size"] != self._group.size() and self._group.rank() == 0:
            logger.warning(
                "PowerSGD continues with %d processes instead of %d: each starts with the mean of all errors",
                self._group.size(),
                state["world_size"],
            )
        errors = {name: error.reshape(-1).clone() for name, error in state["errors"].items()}
        factors = {name: factor.clone() for name, factor in state["factors"].items()}
        self.reset()
        self._errors, self._factors = errors, factors
        self._torch.iter = state["step"]

    def _forget_what_is_not_finite(self, index: int) -> None:
        """Drop a state with NaN: a loss scale that was too large makes all of it NaN, and it would stay NaN. Does not synchronize."""
        error, factor = self._torch.error_dict.get(index), self._torch.q_memory_dict.get(index)
        if error is not None:
            error.nan_to_num_(0.0, 0.0, 0.0)
        if factor is not None:
            # The same on all processes, as before.
            drawn = torch.Generator(factor.device).manual_seed(self._torch.iter)
            fresh = torch.randn(factor.shape, generator=drawn, device=factor.device, dtype=factor.dtype)
            factor.copy_(torch.where(factor.isfinite(), factor, fresh))

    def _memories(self) -> tuple[dict[int, Tensor], dict[int, Tensor], dict[int, Tensor]]:
        return self._torch.error_dict, self._torch.p_memory_dict, self._torch.q_memory_dict

    def _width(self, name: str) -> int:
        """Return the columns of a parameter's factors; 0 if it is sent as it is. By the rule of torch's hook, which decides the layout."""
        rows, columns = self._matrix(name)
        rank = min(rows, columns, self._options.rank)
        return rank if (rows + columns) * rank * self._options.min_compression_rate < rows * columns else 0

    def _matrix(self, name: str) -> tuple[int, int]:
        shape = self._parameters[name].shape
        return shape[0], self._parameters[name].numel() // max(1, shape[0])

    def _sent(self, name: str) -> tuple[int, ...]:
        """Return the elements that are sent for a parameter: itself, or both factors."""
        width = self._width(name)
        return tuple(side * width for side in self._matrix(name)) if width else (self._parameters[name].numel(),)

    def _factor(self, name: str) -> Tensor:
        """Return the initial right factor of a parameter: its last value, or random numbers that depend on the name only.

        torch draws them bucket by bucket, so they would differ after a restart, when the buckets differ.
        """
        if name in self._factors:
            return self._factors[name]
        parameter, seeded = self._parameters[name], torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.randn(self._sent(name)[1], generator=seeded, dtype=torch.float64).to(parameter)

    def _take_up(self) -> None:
        """Move the state out of the buckets, except for buckets whose exchange has started in this step."""
        errors, lefts, rights = self._memories()
        for index in [index for index in self._layout if index not in self._exchanged]:
            self._forget_what_is_not_finite(index)
            names = self._layout.pop(index)
            sizes = [self._parameters[name].numel() for name in names]
            self._errors.update(_split(errors.pop(index), names, sizes))
            narrow = [name for name in names if self._width(name)]
            # The left factor is written before it is read: it has no state.
            lefts.pop(index)
            self._factors.update(_split(rights.pop(index), narrow, [self._sent(name)[1] for name in narrow]))

    def _lay_out(self, index: int, names: list[str], buffer: Tensor) -> None:
        """Move the state into the bucket that now holds these parameters. torch initializes missing errors with 0."""
        errors, lefts, rights = self._memories()
        self._layout[index] = names
        if all(name in self._errors for name in names):
            errors[index] = torch.cat([self._errors.pop(name) for name in names]).to(buffer)
        narrow = [name for name in names if self._width(name)]
        if narrow:
            rights[index] = torch.cat([self._factor(name) for name in narrow]).to(buffer)
            for name in narrow:
                self._factors.pop(name, None)
            lefts[index] = torch.zeros(
                sum(self._sent(name)[0] for name in narrow), dtype=buffer.dtype, device=buffer.device
            )


def _split(flat: Tensor, names: Sequence[str], sizes: Sequence[int]) -> dict[str, Tensor]:
    return {name: part.clone() for name, part in zip(names, flat.split(list(sizes)), strict=True)} if names else {}
