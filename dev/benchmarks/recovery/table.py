"""Format the table, and list the missed targets."""

from collections.abc import Mapping, Sequence

from dev.benchmarks.recovery.parts import PARTS
from dev.benchmarks.recovery.results import Row

OURS = "trainyard"


def table(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Return the table: a block per fault, a line per system."""
    lines: list[str] = []
    heads = "".join(f"{part:>8}" for part in PARTS)
    for fault in dict.fromkeys(row.fault for row in rows):
        lines += [
            "",
            titles.get(fault, fault),
            f"  {'system':<20}{'n':>3}{'never':>6}{'p50 s':>7}{'p95 s':>7}{'lost':>6} |{heads}",
        ]
        lines += [_line(row) for row in rows if row.fault == fault]
    return "\n".join(lines[1:])


def shortfalls(rows: Sequence[Row], aims: Mapping[str, float]) -> list[str]:
    """Return a sentence for each row of this operator that misses its target or is not faster than a peer."""
    found: list[str] = []
    for row in rows:
        if row.system != OURS:
            continue
        aim = aims.get(row.fault)
        if aim is not None and (row.p50_s is None or row.p50_s > aim):
            found.append(f"{row.fault}: the median is {_figure(row.p50_s)} s; the target is {aim:g} s")
        found += [
            f"{row.fault}: {_figure(row.p50_s)} s is not ahead of {peer.system} with {_figure(peer.p50_s)} s"
            for peer in rows
            if peer.fault == row.fault and peer.system != OURS and not _ahead(row, peer)
        ]
    return found


def _ahead(row: Row, peer: Row) -> bool:
    return row.p50_s is not None and (peer.p50_s is None or row.p50_s < peer.p50_s)


def _line(row: Row) -> str:
    parts = "".join(f"{_figure(row.parts.get(part), '-'):>8}" for part in PARTS)
    never = row.never or "-"
    return (
        f"  {row.system:<20}{row.n:>3}{never:>6}{_figure(row.p50_s):>7}{_figure(row.p95_s):>7}"
        f"{'-' if row.lost_steps is None else f'{row.lost_steps:g}':>6} |{parts}"
    )


def _figure(seconds: float | None, nothing: str = "never") -> str:
    return nothing if seconds is None else f"{seconds:.1f}"
