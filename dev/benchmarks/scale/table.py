"""The rows as text, and what they fall short of. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dev.benchmarks.scale.counters import WRITES
from dev.benchmarks.scale.results import Row

OURS: Final = "trainyard"
LIMIT: Final = "raw-with-jobs"
PLAIN_CLIENTS: Final = frozenset({"raw", LIMIT})
TUNED: Final = "training-operator-tuned"
MAX_TIMES_LIMIT: Final = 1.25
FIGURES: Final = ("created_s", "running_s", "status_s")
LEASES: Final = "PUT leases"
HEAD: Final = (
    "system", "created s", "x limit", "x ours", "running s", "status s", "CPU s", "ms/pod", "peak MiB", "calls",
)  # fmt: skip
LEGEND: Final = """\
Seconds from the first request until all pods exist, all run, and the job's status reports that. x limit, x ours: created, as a multiple of
raw-with-jobs and of trainyard.
CPU, peak of memory and calls are those of the operator's process, for JobSet with what kube-controller-manager does in its stead (not the memory);
ms/pod is its CPU. A dash: not reached, or there is no such thing."""


def table(rows: Sequence[Row], titles: Mapping[str, str], pods: Mapping[str, int]) -> str:
    """A block for each case."""
    return "\n\n".join(_block(case, titles[case], pods[case], rows) for case in dict.fromkeys(row.case for row in rows))


def shortfalls(rows: Sequence[Row], pods: Mapping[str, int]) -> list[str]:
    """Where our own figures are not what they should be, a sentence each."""
    found: list[str] = []
    for case in dict.fromkeys(row.case for row in rows):
        by_system = {row.system: row for row in rows if row.case == case}
        if (ours := by_system.get(OURS)) is not None:
            found += _of_case(ours, by_system, pods[case])
    return found


def _of_case(ours: Row, by_system: Mapping[str, Row], pods: int) -> Iterator[str]:
    limit, tuned = by_system.get(LIMIT), by_system.get(TUNED)
    ratio = _times(ours, limit)
    if ratio is not None and ratio > MAX_TIMES_LIMIT:
        yield f"({ours.case}) created takes {ratio:.2f} times as long as {LIMIT}; it may take {MAX_TIMES_LIMIT} times"
    for name, row in by_system.items():
        for figure in FIGURES if name not in {OURS, *PLAIN_CLIENTS} else ():
            mine, theirs = getattr(ours, figure), getattr(row, figure)
            if theirs is not None and (mine is None or mine >= theirs):
                yield f"({ours.case}) {figure} is {_number(mine)}, which is not ahead of {name} with {_number(theirs)}"
    if tuned and ours.created_s is not None and (_share(ours, pods) or 0.0) > (_share(tuned, pods) or float("inf")):
        yield f"({ours.case}) CPU per pod is above that of {TUNED}"
    for call, number in ours.calls.items() if ours.case == "f" else ():
        if call.split()[0] in WRITES and call != LEASES:
            yield f"(f) {number} x {call}, though nothing happened"


def _block(case: str, title: str, pods: int, rows: Sequence[Row]) -> str:
    chosen = [row for row in rows if row.case == case]
    by_system = {row.system: row for row in chosen}
    limit, ours = by_system.get(LIMIT), by_system.get(OURS)
    lines = [list(HEAD)]
    for row in chosen:
        share = _share(row, pods)
        calls = ", ".join(f"{call} {number:,}" for call, number in row.calls.items()) or "-"
        lines.append(
            [
                row.system,
                _number(row.created_s),
                _number(_times(row, limit)),
                _number(_times(row, ours)),
                _number(row.running_s),
                _number(row.status_s),
                _number(row.cpu_s),
                _number(share),
                _number(row.rss_mib, 0),
                calls,
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = [f"({case}) {title}"]
    for line in lines:
        cells = [
            cell.ljust(width) if column in {0, len(HEAD) - 1} else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append(f"  {'  '.join(cells)}".rstrip())
    text += [f"  {row.system}: {row.note}" for row in chosen if row.note]
    return "\n".join(text)


def _share(row: Row, pods: int) -> float | None:
    return None if row.cpu_s is None else 1000 * row.cpu_s / pods


def _times(row: Row, base: Row | None) -> float | None:
    """How many times as long as `base` it takes until the pods are created."""
    return None if row.created_s is None or base is None or not base.created_s else row.created_s / base.created_s


def _number(number: float | None, digits: int = 2) -> str:
    return "-" if number is None else f"{number:,.{digits}f}"
