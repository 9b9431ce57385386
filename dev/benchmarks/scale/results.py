"""Runs, and the rows that they are summed up in. Pure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """One system in one case, once. A time is None where it was not reached, which `note` explains, or makes no sense."""

    case: str
    system: str
    repeat: int
    pods: int
    created_s: float | None = None
    running_s: float | None = None
    status_s: float | None = None
    sent_s: float | None = None
    """How long it took to hand the jobs in; for the plain client, the pods."""
    cpu_s: float | None = None
    """The operator's own."""
    rss_mib: float | None = None
    """The operator's own peak since its start."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """The operator's own, by verb."""
    controller_manager_s: float = 0.0
    """The CPU time of kube-controller-manager meanwhile."""
    controller_manager_calls: Mapping[str, int] = field(default_factory=dict)
    control_plane_s: float = 0.0
    """The CPU time of etcd, the API server, its controllers, the scheduler, DNS and kwok meanwhile."""
    writes: Mapping[str, int] = field(default_factory=dict)
    """The writing requests that the API server answered to anybody meanwhile."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of the repeats."""

    case: str
    system: str
    created_s: float | None
    running_s: float | None
    status_s: float | None
    cpu_s: float | None
    rss_mib: float | None
    calls: Mapping[str, int]
    note: str


def rows(runs: Sequence[Run], leaning: Iterable[str] = (), baseline: str = "trainyard") -> list[Row]:
    """A row for each case and system, in order of first appearance.

    For the `leaning` systems kube-controller-manager creates the pods, so its share is added to theirs. That is its work beyond
    its work for the same case under `baseline`, whose pods it manages too but does not create.
    """
    order = list(dict.fromkeys((run.case, run.system) for run in runs))
    by_key = {key: list(group) for key, group in groupby(sorted(runs, key=_key), key=_key)}
    leaning = set(leaning)
    made = []
    for case, system in sorted(order, key=lambda key: key[0]):
        group = by_key[case, system]
        if system in leaning:
            base = by_key.get((case, baseline), [])
            group = [_with_share(run, base) for run in group]
        made.append(_row(group))
    return made


def median(values: Iterable[float | None], digits: int = 3) -> float | None:
    """None, which is never, counts as later than all; the median of nothing is None."""
    known = [inf if value is None else value for value in values]
    middle = statistics.median(known) if known else inf
    return None if middle == inf else round(middle, digits)


def plain(row: Row) -> dict[str, Any]:
    """As it stands in the file. A note is there only where there is something to say."""
    fields: dict[str, Any] = {name: getattr(row, name) for name in Row.__slots__ if name != "note"}
    return fields | ({"note": row.note} if row.note else {})


def _key(run: Run) -> tuple[str, str]:
    return run.case, run.system


def _row(group: Sequence[Run]) -> Row:
    verbs = sorted({verb for run in group for verb in run.calls})
    notes = dict.fromkeys(run.note for run in group if run.note)
    return Row(
        group[0].case,
        group[0].system,
        median(run.created_s for run in group),
        median(run.running_s for run in group),
        median(run.status_s for run in group),
        median(run.cpu_s for run in group),
        median((run.rss_mib for run in group), 1),
        {verb: round(statistics.median(run.calls.get(verb, 0) for run in group)) for verb in verbs},
        "; ".join(notes),
    )


def _with_share(run: Run, base: Sequence[Run]) -> Run:
    idle_s = statistics.median(other.controller_manager_s for other in base) if base else 0.0
    verbs = run.controller_manager_calls
    calls = dict(run.calls)
    for verb, number in verbs.items():
        usual = statistics.median(other.controller_manager_calls.get(verb, 0) for other in base) if base else 0
        if number > usual:
            calls[f"{verb} by kube-controller-manager"] = round(number - usual)
    share = max(0.0, run.controller_manager_s - idle_s)
    changed = {name: getattr(run, name) for name in Run.__slots__}
    return Run(**changed | {"cpu_s": None if run.cpu_s is None else run.cpu_s + share, "calls": calls})
