"""Measure the share of communication and of exposed communication, from a trace of torch's profiler. Runs as a program of its own.

torch does not measure this per step without overhead, so the shares describe only the profiled steps. A collective lasts
from its earliest start until it is done, so waiting for a slower process is included.

A profile of a large model has a million events. To look at them in the training process would take the interpreter's lock for tens of
seconds. So this file imports the standard library alone, and `python communication.py TRACE` prints the shares as JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TextIO

WAITING = ("c10d::", "_c10d_functional::", "c10d_functional::")
"""Operators that start or await a collective. They are not computation."""
MARKS = ("ProfilerStep", "nccl:", "trainyard::")
"""Annotations that some releases of torch show on the device as if they were kernels."""
KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
HOST = frozenset({"cpu_op", "user_annotation"})
BEGIN = re.compile(r'"traceEvents"\s*:\s*\[')
SEPARATORS = re.compile(r"[\s,]*")
CHUNK_CHARACTERS = 1 << 20
NICENESS = 10
"""The program takes the time that the training leaves."""


class Span(NamedTuple):
    """Start and end in microseconds."""

    begin: float
    end: float


class TraceEvent(NamedTuple):
    """An event with a duration: a kernel, or what a thread of the host does."""

    name: str
    category: str
    thread: str
    span: Span


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


def observed(read: Callable[[], Iterable[TraceEvent]]) -> Communication | None:
    """Return the shares by the events of a trace. None if they have no step, or a collective without an end.

    With GPU kernels, those of NCCL are the collectives, and all others, copies included, are computation. On CPUs, spans of gloo are collectives,
    and operators are computation. Python code between them does not count.

    Args:
        read: returns the events. It is called twice without a GPU, so that a trace with one takes no memory for the host's events.
    """
    kernels = [each for each in read() if each.category in KERNELS and not each.name.startswith(MARKS)]
    found = _on_device(kernels) if kernels else _on_host([each for each in read() if each.category in HOST])
    if found is None:
        return None
    exchanged, worked, steps = found
    window = Span(min(span.begin for span in steps), max(span.end for span in steps))
    return shares(exchanged, worked, window) if window.end > window.begin else None


def _on_device(kernels: Sequence[TraceEvent]) -> tuple[list[Span], list[Span], list[Span]] | None:
    """Return collectives, computation, and the spans that bound the steps. The GPU is behind the host, so its own kernels bound them."""
    # gpu-only: shares of kernels
    exchanged = [each.span for each in kernels if each.name.startswith("nccl")]
    worked = [each.span for each in kernels if not each.name.startswith("nccl")]
    return exchanged, worked, exchanged + worked


def _on_host(events: Sequence[TraceEvent]) -> tuple[list[Span], list[Span], list[Span]] | None:
    """Return collectives, computation, and the spans of the steps. None without a step, or with a collective whose end is missing."""
    exchanged = [each.span for each in events if each.name.startswith("gloo:")]
    steps = [each.span for each in events if each.name.startswith("ProfilerStep")]
    # A process returns from gloo's wait shortly before torch records its end: a profile that stops in between lacks the collective.
    lost = not exchanged and any(each.name.startswith("c10d::") for each in events)
    if lost or not steps:
        return None
    operators = [each for each in events if each.category == "cpu_op" and not each.name.startswith(WAITING)]
    parents = _parents(each for each in events if not each.name.startswith("gloo:"))
    return exchanged, [each.span for each in operators if (each.thread, each.span) not in parents], steps


def _parents(events: Iterable[TraceEvent]) -> set[tuple[str, Span]]:
    """Return the events with others within them on their thread, whose gaps their own span would cover."""
    found: set[tuple[str, Span]] = set()
    open_ones: list[TraceEvent] = []
    for each in sorted(events, key=lambda event: (event.thread, event.span.begin, -event.span.end)):
        while open_ones and (open_ones[-1].thread != each.thread or open_ones[-1].span.end <= each.span.begin):
            open_ones.pop()
        if open_ones:
            found.add((open_ones[-1].thread, open_ones[-1].span))
        open_ones.append(each)
    return found


def events_of(file: TextIO) -> Iterator[TraceEvent]:
    """Yield the events with a duration of a trace, in constant memory.

    Raises:
        ValueError: the trace is not complete.
    """
    for each in _objects(file):
        if each.get("ph") == "X" and each.get("cat") in KERNELS | HOST:
            begin = float(each["ts"])
            span = Span(begin, begin + float(each["dur"]))
            yield TraceEvent(each["name"], each["cat"], str(each["tid"]), span)


def _objects(file: TextIO) -> Iterator[dict[str, Any]]:
    """Yield the elements of `traceEvents` one after the other."""
    decode, text, at = json.JSONDecoder().raw_decode, "", None
    for chunk in iter(partial(file.read, CHUNK_CHARACTERS), ""):
        text = text[at or 0 :] + chunk
        if at is None:
            begin = BEGIN.search(text)
            if not begin:
                continue
            text = text[begin.end() :]
        at = 0
        while True:
            at = _skip(text, at)
            if text.startswith("]", at):
                return
            try:
                found, at = decode(text, at)
            except json.JSONDecodeError:
                # The rest of it is in the next chunk.
                break
            yield found
    raise ValueError("the trace is not complete")


def _skip(text: str, at: int) -> int:
    separators = SEPARATORS.match(text, at)
    return separators.end() if separators else at


def main(path: str) -> None:
    """Print the shares of a trace as a JSON object, or null."""
    os.nice(NICENESS)

    def read() -> Iterator[TraceEvent]:
        with Path(path).open(errors="replace") as file:
            yield from events_of(file)

    found = observed(read)
    sys.stdout.write(json.dumps(found and found._asdict()))


if __name__ == "__main__":
    main(sys.argv[1])
