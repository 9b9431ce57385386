"""Measure the share of communication and of exposed communication, from the events of torch's profiler. Pure.

torch does not measure this per step without overhead, so the shares describe only the profiled steps. A collective lasts
from its earliest start until it is done, so waiting for a slower process is included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WAITING = ("c10d::", "_c10d_functional::", "c10d_functional::")
"""Operators that start or await a collective. They are not computation."""
MARKS = ("ProfilerStep", "nccl:", "trainyard::")
"""Annotations that some releases of torch show on the device as if they were kernels."""


class Span(NamedTuple):
    """Start and end in microseconds."""

    begin: float
    end: float


class Communication(NamedTuple):
    """Shares of the time of the profiled steps, from 0 to 1."""

    ratio: float
    """The share in which a collective was running."""
    exposed: float
    """The share in which a collective was running and nothing was computed."""


def shares(collectives: Iterable[Span], work: Iterable[Span], window: Span) -> Communication:
    """Return the shares of the window's time; anything outside of it is ignored.

    Raises:
        ValueError: `window` is empty.
    """
    length = window.end - window.begin
    if not length > 0:
        raise ValueError(f"window must end after it begins, not {window}")
    exchanged, worked = [*collectives], [*work]
    busy = covered(worked, window)
    return Communication(covered(exchanged, window) / length, (covered(exchanged + worked, window) - busy) / length)


def covered(spans: Iterable[Span], window: Span) -> float:
    """Return the time of the window that at least one span covers."""
    total, reached = 0.0, window.begin
    for begin, end in sorted(spans):
        start, stop = max(begin, reached), min(end, window.end)
        if stop > start:
            total += stop - start
            reached = stop
    return total


def observed(events: Sequence[Any]) -> Communication | None:
    """Return the shares by a profile's events (`torch.profiler.profile.events()`). None if they have no step, or a collective without an end.

    With GPU kernels, those of NCCL are the collectives, and all others, copies included, are computation. On CPUs, spans of gloo are collectives,
    and operators are computation. Python code between them does not count.
    """
    kernels = [event for event in events if event.device_type.name != "CPU" and not _mark(event)]
    found = _on_device(kernels) if kernels else _on_host(events)
    if found is None:
        return None
    exchanged, worked, steps = found
    window = Span(min(span.begin for span in steps), max(span.end for span in steps))
    return shares(exchanged, worked, window) if window.end > window.begin else None


def _on_device(kernels: Sequence[Any]) -> tuple[list[Span], list[Span], list[Span]] | None:
    """Return collectives, computation, and the spans that bound the steps. The GPU is behind the host, so its own kernels bound them."""
    # gpu-only: shares of kernels
    exchanged = [_span(event) for event in kernels if event.name.startswith("nccl")]
    worked = [_span(event) for event in kernels if not event.name.startswith("nccl")]
    return exchanged, worked, exchanged + worked


def _on_host(events: Sequence[Any]) -> tuple[list[Span], list[Span], list[Span]] | None:
    """Return collectives, computation, and the spans of the steps. None without a step, or with a collective whose end is missing."""
    exchanged = [_span(event) for event in events if event.name.startswith("gloo:")]
    steps = [_span(event) for event in events if event.name.startswith("ProfilerStep")]
    # A process returns from gloo's wait shortly before torch records its end: a profile that stops in between lacks the collective.
    lost = not exchanged and any(event.name.startswith("c10d::") for event in events)
    if lost or not steps:
        return None
    return exchanged, [_span(event) for event in events if _operator(event)], steps


def _mark(event: Any) -> bool:
    return bool(event.is_user_annotation) or event.name.startswith(MARKS)


def _operator(event: Any) -> bool:
    """Return whether this operator computes and has no operators below it, whose gaps its own span would cover."""
    return not (event.is_async or event.cpu_children or _mark(event) or event.name.startswith(("gloo:", *WAITING)))


def _span(event: Any) -> Span:
    return Span(event.time_range.start, event.time_range.end)
