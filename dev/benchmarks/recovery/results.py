"""Aggregate single recoveries into the rows of the table."""

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dev.benchmarks.recovery.parts import PARTS


@dataclass(frozen=True, slots=True)
class Run:
    """One fault and its recovery."""

    fault: str
    system: str
    repeat: int
    seconds: float | None = None
    """Seconds from the fault to the next step; None if there was none in time."""
    lost_steps: int | None = None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """All runs of one fault under one system. A recovery that never completed counts as the longest."""

    fault: str
    system: str
    n: int
    never: int
    p50_s: float | None
    """None if the percentile is a recovery that never completed; the same for `p95_s`."""
    p95_s: float | None
    lost_steps: float | None
    """Median of the completed recoveries."""
    parts: Mapping[str, float | None]
    """Medians of the completed recoveries. None if most recoveries did not show this part."""


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return a row for each fault and system, in order of the first run."""
    keys = dict.fromkeys((run.fault, run.system) for run in runs)
    order = {fault: index for index, fault in enumerate(dict.fromkeys(fault for fault, _ in keys))}
    wanted = sorted(keys, key=lambda key: order[key[0]])
    return [
        _row(fault, system, [run for run in runs if (run.fault, run.system) == (fault, system)])
        for fault, system in wanted
    ]


def hopeless(runs: Iterable[Run], fault: str, system: str, patience: int) -> bool:
    """Return whether the first runs show that this system never recovers from this fault."""
    own = [run for run in runs if (run.fault, run.system) == (fault, system)]
    return len(own) >= patience and all(run.seconds is None for run in own)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile by the nearest-rank method."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def line(run: Run) -> str:
    """Return what is printed after a run, with the time of day."""
    parts = " ".join(f"{part} {seconds:.1f}" for part, seconds in run.parts.items() if seconds is not None)
    came = "never" if run.seconds is None else f"{run.seconds:.2f} s, {run.lost_steps} steps lost ({parts})"
    return f"{time.strftime('%H:%M:%S')} {run.fault} {run.system}: {came}; {run.note}"


def plain(row: Row) -> dict[str, Any]:
    """Return the row as it is written to the file."""
    content = asdict(row)
    for name in ("p50_s", "p95_s", "lost_steps"):
        content[name] = _rounded(content[name])
    content["parts"] = {part: _rounded(seconds) for part, seconds in row.parts.items()}
    return content


def _row(fault: str, system: str, runs: Sequence[Run]) -> Row:
    seconds = [math.inf if run.seconds is None else run.seconds for run in runs]
    completed = [run for run in runs if run.seconds is not None]
    return Row(
        fault,
        system,
        len(runs),
        len(runs) - len(completed),
        _finite(statistics.median(seconds)),
        _finite(percentile(seconds, 0.95)),
        _median([run.lost_steps for run in completed], len(completed)),
        {part: _median([run.parts.get(part) for run in completed], len(completed)) for part in PARTS},
    )


def _median(values: Iterable[float | None], of: int) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and 2 * len(known) > of else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
