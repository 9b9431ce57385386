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
"""The most spans of a step that are measured on a GPU. Each micro-batch has one, and one more after each phase within it."""


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
        self._began: torch.cuda.Event | None = None
        """Where the open span began on the GPU; None if nothing is measured now."""
        self._deferred = DeferredScalars()

    def enter(self, phase: str, *, training: bool) -> bool:
        """Enter a phase. It interrupts the measurement unless it is one of the compute phases.

        Args:
            phase: the phase.
            training: whether it is part of a step.

        Returns:
            Whether the phase around it is measured on the GPU, to be passed to `leave`.
        """
        outer, measured = self._began is not None, training and phase in self._on_device
        if measured is not outer:
            self._switch(measured=measured)
        return outer

    def leave(self, *, outer: bool) -> None:
        """Leave the phase that was entered last, and go on with the phase around it."""
        if outer is (self._began is None):
            self._switch(measured=outer)

    def _switch(self, *, measured: bool) -> None:
        """Begin or end a span of the GPU."""
        if measured and len(self._spans) >= MAX_SPANS:
            return
        # gpu-only: the time of kernels
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        if self._began is not None:
            self._spans.append(Span(self._began, event))
        self._began = event if measured else None

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
