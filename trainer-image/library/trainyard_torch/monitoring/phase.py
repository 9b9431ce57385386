"""One use of `Monitor.phase`: its time goes to the meter, its kernels to the timer and the profile, its name to the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainyard_torch.monitoring.compute_time import ComputeTimer
    from trainyard_torch.monitoring.meter import Meter
    from trainyard_torch.monitoring.profiler import Profiler


class Phase:
    """A context manager that may be entered once.

    It is a class since a generator takes twice as long, and a step enters four phases.

    Args:
        name: one of `meter.PHASES`.
        meter: counts the time.
        profiler: shows the phase in a profile, if one is being made.
        compute: measures the time on the device.
        progress: reports a phase that is no part of a step to the agent.
    """

    __slots__ = ("_compute", "_mark", "_meter", "_name", "_outer", "_profiler", "_progress", "_reported")

    def __init__(
        self, name: str, meter: Meter, profiler: Profiler, compute: ComputeTimer, progress: Callable[..., None]
    ) -> None:
        self._name, self._meter, self._profiler = name, meter, profiler
        self._compute, self._progress = compute, progress

    def __enter__(self) -> None:
        self._reported = self._meter.enter(self._name)
        if self._reported:
            self._progress(phase=self._name)
        self._mark = self._profiler.marked(self._name)
        if self._mark:
            self._mark.__enter__()
        self._outer = self._compute.enter(self._name, training=not self._meter.not_training)

    def __exit__(self, *_: object) -> None:
        self._compute.leave(outer=self._outer)
        if self._mark:
            self._mark.__exit__(None, None, None)
        self._meter.leave()
        if self._reported:
            self._progress(phase="train")
