"""Aggregate single size changes into the rows of the table."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from dev.benchmarks.recovery.results import percentile

OURS: Final = "trainyard"
AIMS: Final[Mapping[str, float]] = {"shrink": 10.0}
"""Largest allowed median of this operator in seconds, if all pods already exist."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of size, and its result."""

    event: str
    system: str
    repeat: int
    seconds: float | None = None
    """Seconds from the event to the first step in the new size; None if the job never reached that size."""
    idle: float | None = None
    """Seconds of these without training."""
    lost_steps: int | None = None
    """Repeated steps."""


@dataclass(frozen=True, slots=True)
class Row:
    """All changes of one kind under one system. A change that never completed counts as the longest."""

    event: str
    system: str
    n: int
    never: int
    p50_s: float | None
    p95_s: float | None
    idle_s: float | None
    lost_steps: float | None


def rows(changes: Sequence[Change]) -> list[Row]:
    """Return a row for each event and system, ordered by event."""
    keys = dict.fromkeys((change.event, change.system) for change in changes)
    order = {event: index for index, event in enumerate(dict.fromkeys(event for event, _ in keys))}
    return [
        _row(event, system, [change for change in changes if (change.event, change.system) == (event, system)])
        for event, system in sorted(keys, key=lambda key: order[key[0]])
    ]


def plain(row: Row) -> dict[str, Any]:
    """Return the row as it is written to the file."""
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(row).items()}


def table(found: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Return the table: a block per event, a line per system."""
    lines: list[str] = []
    for event in dict.fromkeys(row.event for row in found):
        lines += ["", f"{event}: {titles.get(event, '')}"]
        lines.append(f"  {'system':<22}{'n':>3}{'never':>6}{'p50 s':>8}{'p95 s':>8}{'idle s':>8}{'again':>7}")
        lines += [
            f"  {row.system:<22}{row.n:>3}{row.never or '-':>6}{_figure(row.p50_s):>8}{_figure(row.p95_s):>8}{_figure(row.idle_s):>8}"
            f"{'-' if row.lost_steps is None else f'{row.lost_steps:g}':>7}"
            for row in found
            if row.event == event
        ]
    return "\n".join(lines[1:])


def shortfalls(found: Sequence[Row]) -> list[str]:
    """Return a sentence for each row of this operator that misses its target or is not faster than a peer."""
    found_shortfalls: list[str] = []
    for row in (row for row in found if row.system == OURS):
        aim = AIMS.get(row.event)
        if aim is not None and (row.p50_s is None or row.p50_s > aim):
            found_shortfalls.append(f"{row.event}: the median is {_figure(row.p50_s)} s; the target is {aim:g} s")
        peers = [peer for peer in found if peer.event == row.event and peer.system != OURS]
        found_shortfalls += [
            f"{row.event}: {what} {_figure(own)} is not ahead of {peer.system} with {_figure(other)}"
            for peer in peers
            for what, own, other in (
                ("seconds", row.p50_s, peer.p50_s),
                ("idle seconds", row.idle_s, peer.idle_s),
            )
            if own is None or (other is not None and own >= other)
        ]
        found_shortfalls += [
            f"{row.event}: {row.lost_steps:g} steps are repeated, and {peer.lost_steps:g} under {peer.system}"
            for peer in peers
            if row.lost_steps is not None and peer.lost_steps is not None and row.lost_steps > peer.lost_steps
        ]
    return found_shortfalls


def _row(event: str, system: str, changes: Sequence[Change]) -> Row:
    seconds = [math.inf if change.seconds is None else change.seconds for change in changes]
    completed = [change for change in changes if change.seconds is not None]
    return Row(
        event,
        system,
        len(changes),
        len(changes) - len(completed),
        _finite(statistics.median(seconds)),
        _finite(percentile(seconds, 0.95)),
        _median(change.idle for change in completed),
        _median(change.lost_steps for change in completed),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _figure(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f}"
