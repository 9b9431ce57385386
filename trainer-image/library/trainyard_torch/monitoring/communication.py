"""How much of the time processes exchange data, and how much of that nothing hides. From what torch's profiler has seen; pure.

Nothing in torch tells this of every step without cost: so it is true of the steps that were looked at, and of these alone. A collective lasts
from when it can begin until it is done, so that the time in which it waits for a slower process is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WAITING = ("c10d::", "_c10d_functional::", "c10d_functional::")
"""Operators that begin a collective, or wait for one: they are no work."""
MARKS = ("ProfilerStep", "nccl:", "trainyard::")
"""Annotations that some releases of torch show on the device's side as if they were kernels."""


class Span(NamedTuple):
    """From when to when, in microseconds."""

    begin: float
    end: float


class Communication(NamedTuple):
    """Shares of the time of the steps that were looked at, from 0 to 1."""

    ratio: float
    """In which a collective was under way."""
    exposed: float
    """In which one was, and nothing was computed."""


def shares(collectives: Iterable[Span], work: Iterable[Span], whole: Span) -> Communication:
    """Of the time of `whole`; what lies outside of it is left out.

    Raises:
        ValueError: `whole` has no length.
    """
    length = whole.end - whole.begin
    if not length > 0:
        raise ValueError(f"whole must end after it begins, and is {whole}")
    exchanged, worked = [*collectives], [*work]
    busy = covered(worked, whole)
    return Communication(covered(exchanged, whole) / length, (covered(exchanged + worked, whole) - busy) / length)


def covered(spans: Iterable[Span], whole: Span) -> float:
    """How much of `whole` is in one of these at least."""
    total, reached = 0.0, whole.begin
    for begin, end in sorted(spans):
        start, stop = max(begin, reached), min(end, whole.end)
        if stop > start:
            total += stop - start
            reached = stop
    return total


def observed(events: Sequence[Any]) -> Communication | None:
    """What the events of a profile (`torch.profiler.profile.events()`) tell of its steps. None where they show no step, or
    a collective that began and was not seen to end.

    Where there are kernels of a GPU, those of NCCL are the collectives and all others, copies included, are work. On CPU the spans of gloo are, and operators are work; what Python
    does between these counts for nothing.
    """
    kernels = [event for event in events if event.device_type.name != "CPU" and not _mark(event)]
    if kernels:
        # gpu-only: shares of kernels
        exchanged = [_span(event) for event in kernels if event.name.startswith("nccl")]
        worked = [_span(event) for event in kernels if not event.name.startswith("nccl")]
        # A GPU is behind its host: its own time counts, from the first kernel to the last.
        steps = exchanged + worked
    else:
        exchanged = [_span(event) for event in events if event.name.startswith("gloo:")]
        worked = [_span(event) for event in events if _operator(event)]
        steps = [_span(event) for event in events if event.name.startswith("ProfilerStep")]
        if not exchanged and any(event.name.startswith("c10d::") for event in events):
            # Who waits for gloo goes on a moment before torch notes its end: a profile that stops in it lacks the collective.
            return None
    if not steps:
        return None
    whole = Span(min(span.begin for span in steps), max(span.end for span in steps))
    return shares(exchanged, worked, whole) if whole.end > whole.begin else None


def _mark(event: Any) -> bool:
    return bool(event.is_user_annotation) or event.name.startswith(MARKS)


def _operator(event: Any) -> bool:
    """One that computes: without others below it, which would have all that is between them in it too."""
    return not (event.is_async or event.cpu_children or _mark(event) or event.name.startswith(("gloo:", *WAITING)))


def _span(event: Any) -> Span:
    return Span(event.time_range.start, event.time_range.end)
