"""The learning rate, as a function of the samples that were seen. Pure.

Of samples, not of steps or processes: a run that goes on, with whatever number of processes, has the rate that it had.

Source: P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, sections 2.1 and 2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence

Scaling = Literal["linear", "sqrt", "none"]
Then = Literal["constant", "cosine"]


class Optimizer(Protocol):
    """What of torch's optimizers is needed."""

    @property
    def param_groups(self) -> Sequence[dict[str, Any]]:
        """Each with its `lr`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A rise, and what comes after it.

    Attributes:
        rate: the learning rate that is good for steps of `reference` samples.
        reference: samples of a step for which `rate` was found.
        batch: samples of a step, all processes together.
        scaling: how the rate grows with the batch: "linear" (Goyal et al., for SGD and LARS), "sqrt" (You et al., for Adam and LAMB), or
            "none".
        warmup: samples until the rate is at its peak; Goyal et al.: those of five epochs.
        begin: the rate before the first sample. None: `rate`, as Goyal et al. have it, or the peak where that is lower.
        then: "constant", or "cosine" down to `end`.
        total: samples of the whole training; "cosine" needs it.
        end: the rate at the end of "cosine", and after it.

    Raises:
        ValueError: a number is out of its range, or a word is none of these.
    """

    rate: float
    batch: int
    reference: int = 256
    scaling: Scaling = "linear"
    warmup: int = 0
    begin: float | None = None
    then: Then = "constant"
    total: int | None = None
    end: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rate", "batch", "reference"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive, and is {getattr(self, name)}")
        for name in ("warmup", "begin", "end"):
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise ValueError(f"{name} must be from 0 on, and is {getattr(self, name)}")
        for name, words in (("scaling", get_args(Scaling)), ("then", get_args(Then))):
            if getattr(self, name) not in words:
                raise ValueError(f"{name} must be one of {', '.join(words)}, and is {getattr(self, name)!r}")
        if self.then == "cosine" and (self.total is None or self.total <= self.warmup):
            raise ValueError(
                f"cosine needs total, more samples than warmup has ({self.warmup}), and it is {self.total}"
            )
        if self.then == "constant" and (self.total is not None or self.end):
            raise ValueError('a constant rate has no total and no end: leave them out, or say then="cosine"')

    @property
    def peak(self) -> float:
        """The rate after the warm-up."""
        times = self.batch / self.reference
        match self.scaling:
            case "linear":
                return self.rate * times
            case "sqrt":
                return self.rate * math.sqrt(times)
            case "none":
                return self.rate

    def at(self, samples: int) -> float:
        """The rate of the step that begins after so many samples, in all epochs: `Batches.cursor`.

        Raises:
            ValueError: there cannot be so many.
        """
        if samples < 0:
            raise ValueError(f"samples must be from 0 on, and is {samples}")
        if samples < self.warmup:
            first = min(self.rate, self.peak) if self.begin is None else self.begin
            return first + (self.peak - first) * samples / self.warmup
        if self.total is None:
            return self.peak
        done = min(1.0, (samples - self.warmup) / (self.total - self.warmup))
        return self.end + (self.peak - self.end) * (1 + math.cos(math.pi * done)) / 2

    def factor(self, samples: int) -> float:
        """The same as a share of the peak: `LambdaLR(optimizer, lambda step: schedule.factor(step * batch))`, at `lr=schedule.peak`."""
        return self.at(samples) / self.peak

    def set(self, optimizer: Optimizer, samples: int) -> float:
        """Give an optimizer the rate of the step that begins after so many samples; to be called before each step.

        A group with `lr_scale` has so many times the rate.

        Returns:
            The rate.
        """
        rate = self.at(samples)
        for group in optimizer.param_groups:
            now = rate * group.get("lr_scale", 1.0)
            # An optimizer that is compiled, or captured in a CUDA graph, has its rate in a tensor, and reads it there.
            if hasattr(group["lr"], "fill_"):
                group["lr"].fill_(now)
            else:
                group["lr"] = now
        return rate
