"""How long this process works itself in a step, without waiting for others: by the host's clock, and on a GPU by events. Synchronises nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from trainyard_torch.monitoring.deferred import DeferredScalars, Worked
from trainyard_torch.monitoring.meter import PHASES

if TYPE_CHECKING:
    from collections.abc import Collection

    from trainyard_torch.monitoring.meter import Step

MAX_SPANS = 1024
"""Times that a GPU is asked how long it took in one step: more micro-batches than anybody has."""


class Span(NamedTuple):
    """A time of the GPU's, from one event to another on the stream that was the current one."""

    begin: torch.cuda.Event
    end: torch.cuda.Event


class ComputeTimer:
    """Of one process.

    Args:
        phases: those in which it waits for no other.
        device: that computes. GPU work is asynchronous: there, events measure how long it took, a step or two later, for
            all of these phases but `data`, which is the host's.

    Raises:
        ValueError: there is no such phase.
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
        """The phase with this time ends."""
        self._open = False
        span.end.record()
        self._spans.append(span)

    def stepped(self, step: Step, *, first: bool) -> list[float]:
        """A step is done. Seconds of those of which they are newly known; of the first, in which kernels are chosen, they are not asked for."""
        spans, self._spans = self._spans, []
        if first:
            return []
        host = sum(step.within(phase) for phase in self._on_host)
        if not self._on_device:
            return [host] if host > 0 else []
        if spans:
            self._deferred.wait(Worked(host, spans))
        return self._deferred.arrived()
