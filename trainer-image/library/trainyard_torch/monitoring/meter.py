"""Measure the time of steps and of their phases. Pure: the clock is a parameter, and nothing depends on a device or on torch.

Time counts for the innermost open phase, or for `other` if no phase is open. So the phases of a step add up to its time. Time within a
checkpoint, an evaluation or a compilation is not part of a step.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PHASES = ("data", "forward", "backward", "optimizer", "communication", "checkpoint", "evaluate", "compile", "other")
NOT_TRAINING = ("checkpoint", "evaluate", "compile")
"""Phases that are not part of a step. They count neither for the step time nor for the throughput."""
WINDOW = 64
_NUMBER = {phase: number for number, phase in enumerate(PHASES)}
_OTHER = _NUMBER["other"]
_NOT_TRAINING = frozenset(_NUMBER[phase] for phase in NOT_TRAINING)
_STEPS = tuple(number for number in range(len(PHASES)) if number not in _NOT_TRAINING)


class Step(NamedTuple):
    """One step: its seconds by phase since the end of the previous step, and its samples and tokens."""

    spent: tuple[float, ...]
    samples: int
    tokens: int

    @property
    def wall(self) -> float:
        """Seconds from the end of the previous step to the end of this one."""
        return sum(self.spent)

    @property
    def seconds(self) -> float:
        """Seconds of the step, without phases that are not part of a step."""
        return sum(self.spent[number] for number in _STEPS)

    def within(self, phase: str) -> float:
        """Return the seconds of the step in this phase."""
        return self.spent[_NUMBER[phase]]


@dataclass(frozen=True, slots=True)
class Throughput:
    """The throughput over the last steps. None: not known yet, or not counted.

    Attributes:
        step_seconds: the median step time.
        compute_seconds: the median compute time of a step on this process.
        steps_per_second, samples_per_second, tokens_per_second: the rates of this process.
        shares: the share of each phase in the time. Phases without time are omitted.
    """

    step_seconds: float | None
    compute_seconds: float | None
    steps_per_second: float | None
    samples_per_second: float | None
    tokens_per_second: float | None
    shares: Mapping[str, float]


class Meter:
    """Measures the steps of one process. Used by one thread.

    Args:
        window: the number of steps that `throughput` covers, at least 1.
        clock: returns seconds of a monotonic clock.

    Raises:
        ValueError: the window is not positive.
    """

    def __init__(self, window: int = WINDOW, clock: Callable[[], float] = time.perf_counter) -> None:
        if window < 1:
            raise ValueError(f"window must be from 1 on, got {window}")
        self.steps = self.samples = self.tokens = 0
        self._clock = clock
        self._since = clock()
        self._open = [_OTHER]
        self._here = [0.0] * len(PHASES)
        self._totals = [0.0] * len(PHASES)
        self._window: deque[Step] = deque(maxlen=window)
        self._compute: deque[float] = deque(maxlen=window)

    def enter(self, phase: str) -> bool:
        """Enter a phase. It interrupts the open phase. Return whether the training pauses with it: it is the first that is no part of a step.

        Raises:
            ValueError: the phase is unknown.
        """
        number = _NUMBER.get(phase)
        if number is None:
            raise ValueError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}")
        self._account()
        outer = self._open[-1]
        within = outer in _NOT_TRAINING
        self._open.append(outer if within else number)
        return not within and number in _NOT_TRAINING

    def leave(self) -> None:
        """End the phase that was entered last."""
        self._account()
        self._open.pop()

    @property
    def not_training(self) -> bool:
        """Whether the open phase is not part of a step."""
        return self._open[-1] in _NOT_TRAINING

    def step(self, samples: int = 0, tokens: int = 0) -> Step:
        """Record a finished step, and return it.

        The first step counts for the totals and not for the window: it includes the creation of models and the selection of kernels.

        Raises:
            ValueError: a number is negative.
        """
        if samples < 0 or tokens < 0:
            raise ValueError(f"samples and tokens must be from 0 on, got {samples} and {tokens}")
        self._account()
        done = Step(tuple(self._here), samples, tokens)
        self._here = [0.0] * len(PHASES)
        self._totals = [total + spent for total, spent in zip(self._totals, done.spent, strict=True)]
        if self.steps:
            self._window.append(done)
        self.steps += 1
        self.samples += samples
        self.tokens += tokens
        return done

    def computed(self, seconds: float) -> None:
        """Add the compute time of a step in seconds. It may be known some steps later."""
        self._compute.append(seconds)

    @property
    def totals(self) -> dict[str, float]:
        """Seconds in each phase, up to the end of the last step."""
        return dict(zip(PHASES, self._totals, strict=True))

    def throughput(self) -> Throughput:
        """Return the throughput over the window, without the first step of the run."""
        steps = self._window
        seconds = sum(step.seconds for step in steps)
        wall = sum(step.wall for step in steps)
        by_phase = (sum(each) for each in zip(*(step.spent for step in steps), strict=True))
        return Throughput(
            step_seconds=median(step.seconds for step in steps) if steps else None,
            compute_seconds=median(self._compute) if self._compute else None,
            steps_per_second=_per(len(steps), seconds),
            samples_per_second=_per(sum(step.samples for step in steps), seconds),
            tokens_per_second=_per(sum(step.tokens for step in steps), seconds),
            shares={phase: spent / wall for phase, spent in zip(PHASES, by_phase, strict=False) if spent > 0},
        )

    def _account(self) -> None:
        now = self._clock()
        self._here[self._open[-1]] += now - self._since
        self._since = now


def _per(count: int, seconds: float) -> float | None:
    return count / seconds if count and seconds > 0 else None
