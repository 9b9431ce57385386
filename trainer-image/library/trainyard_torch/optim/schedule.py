"""The learning rate as a function of the samples seen so far. Pure.

It depends on samples, not on steps or processes: a resumed run has the same rate at any number of processes.

Source: P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, sections 2.1 and 2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence

Scaling = Literal["linear", "sqrt", "none"]
Decay = Literal["constant", "cosine"]


class Optimizer(Protocol):
    """The part of torch's optimizers that is needed."""

    @property
    def param_groups(self) -> Sequence[dict[str, Any]]:
        """The parameter groups, each with its `lr`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LRSchedule:
    """Linear warm-up to the peak rate, then constant or cosine decay.

    Attributes:
        base_lr: the learning rate for steps of `reference_batch_size` samples.
        reference_batch_size: the samples of a step for which `base_lr` was tuned.
        batch_size: the samples of a step over all processes.
        scaling: how the rate grows with the batch. "linear" (Goyal et al.) is for SGD and LARS, "sqrt" (You et al.) for Adam and LAMB; or "none".
        warmup_samples: the samples until the peak rate; five epochs in Goyal et al.
        start_lr: the rate before the first sample. None: `base_lr`, as in Goyal et al., or the peak rate if that is lower.
        decay: "constant", or "cosine" down to `end_lr`.
        total_samples: the samples of the whole training; required by "cosine".
        end_lr: the rate at the end of "cosine", and after it.

    Raises:
        ValueError: a number is out of range, or a name is unknown.
    """

    base_lr: float
    batch_size: int
    reference_batch_size: int = 256
    scaling: Scaling = "linear"
    warmup_samples: int = 0
    start_lr: float | None = None
    decay: Decay = "constant"
    total_samples: int | None = None
    end_lr: float = 0.0

    def __post_init__(self) -> None:
        for name in ("base_lr", "batch_size", "reference_batch_size"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("warmup_samples", "start_lr", "end_lr"):
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise ValueError(f"{name} must be from 0 on, got {getattr(self, name)}")
        for name, known in (("scaling", get_args(Scaling)), ("decay", get_args(Decay))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.decay == "cosine" and (self.total_samples is None or self.total_samples <= self.warmup_samples):
            raise ValueError(
                f"cosine needs total_samples, more than warmup_samples ({self.warmup_samples}), not {self.total_samples}"
            )
        if self.decay == "constant" and (self.total_samples is not None or self.end_lr):
            raise ValueError(
                'a constant rate takes no total_samples and no end_lr: leave them out, or set decay="cosine"'
            )

    @property
    def peak_lr(self) -> float:
        """The rate after the warm-up."""
        times = self.batch_size / self.reference_batch_size
        match self.scaling:
            case "linear":
                return self.base_lr * times
            case "sqrt":
                return self.base_lr * math.sqrt(times)
            case "none":
                return self.base_lr

    def at(self, samples: int) -> float:
        """Return the rate of the step after `samples` samples of all epochs (`Batches.cursor`).

        Raises:
            ValueError: `samples` is negative.
        """
        if samples < 0:
            raise ValueError(f"samples must be from 0 on, got {samples}")
        if samples < self.warmup_samples:
            first = min(self.base_lr, self.peak_lr) if self.start_lr is None else self.start_lr
            return first + (self.peak_lr - first) * samples / self.warmup_samples
        if self.total_samples is None:
            return self.peak_lr
        done = min(1.0, (samples - self.warmup_samples) / (self.total_samples - self.warmup_samples))
        return self.end_lr + (self.peak_lr - self.end_lr) * (1 + math.cos(math.pi * done)) / 2

    def factor(self, samples: int) -> float:
        """Return the rate as a share of the peak: `LambdaLR(optimizer, lambda step: schedule.factor(step * batch))`, at `lr=schedule.peak`."""
        return self.at(samples) / self.peak_lr

    def apply(self, optimizer: Optimizer, samples: int) -> float:
        """Set an optimizer's rate for the step after `samples` samples. Call it before each step.

        A group with `lr_scale` gets the rate times that factor.

        Returns:
            The rate.
        """
        base_lr = self.at(samples)
        for group in optimizer.param_groups:
            now = base_lr * group.get("lr_scale", 1.0)
            # An optimizer that is compiled, or captured in a CUDA graph, has its rate in a tensor, and reads it there.
            if hasattr(group["lr"], "fill_"):
                group["lr"].fill_(now)
            else:
                group["lr"] = now
        return base_lr
