"""Measure the compute time of a step: without waits for other processes, by the host clock and by GPU events. Does not synchronize."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from trainyard_torch.monitoring.deferred import DeferredScalars, Worked
from trainyard_torch.monitoring.meter import PHASES

if TYPE_CHECKING:
    from collections.abc import Collection

    from trainyard_torch.monitoring.meter import Step

MAX_SPANS = 1024
"""The most spans of a step that are measured on a GPU. No step has as many micro-batches."""


class Span(NamedTuple):
    """A span of GPU time between two events on the current stream."""

    begin: torch.cuda.Event
    end: torch.cuda.Event


class ComputeTimer:
    """Measures the compute time of one process.

    Args:
        phases: the phases in which the process waits for no other process.
        device: the device of the model. GPU work is asynchronous, so events measure it, and the result arrives a step or two later.
            The phase `data` is always measured on the host.

    Raises:
        ValueError: a phase is unknown.
    """

    def __init__(self, phases: Collection[str], device: torch.device) -> None:
        if unknown := set(phases) - set(PHASES):
            raise ValueError(
                f"compute_phases must be of the phases {', '.join(PHASES)}, and has {', '.join(sorted(unknown))}"
            )
        self._on_device = frozenset(phases) - {"data"} if device.type == "cuda" else frozenset()
        self._on_host = frozenset(phases) - self._on_device
        self._spans: list[Span] = []
        self._open = False
        self._deferred = DeferredScalars()

    def begin(self, phase: str) -> Span | None:
        """Start a phase. Return its GPU span, to be passed to `end`; None if it is not measured."""
        if phase not in self._on_device or self._open or len(self._spans) >= MAX_SPANS:
            return None
        self._open = True
        # gpu-only: the time of kernels
        span = Span(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        span.begin.record()
        return span

    def end(self, span: Span) -> None:
        """End the phase of this span."""
        self._open = False
        span.end.record()
        self._spans.append(span)

    def stepped(self, step: Step, *, first: bool) -> list[float]:
        """Record a finished step. Return the compute times in seconds that are newly known. The first step is skipped: it selects kernels."""
        spans, self._spans = self._spans, []
        if first:
            return []
        host = sum(step.within(phase) for phase in self._on_host)
        if not self._on_device:
            return [host] if host > 0 else []
        if spans:
            self._deferred.wait(Worked(host, spans))
        return self._deferred.arrived()
