"""What a dashboard is made of: data that says what is to be seen, which tests read too."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

GOOD, POOR, BAD, PLAIN = "green", "orange", "red", "blue"
FLEET, JOB, OPERATOR = "trainyard-fleet", "trainyard-job", "trainyard-operator"
"""The dashboards' uids, by which they link to each other."""


class Kind(StrEnum):
    """How a panel shows its numbers."""

    LINES = "timeseries"
    NUMBER = "stat"
    STATES = "state-timeline"
    BY_RANK = "status-history"
    """A row for each series, a cell for each moment, the hotter the greater: the heat map of ranks."""
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of Prometheus.

    Attributes:
        expr: in PromQL, with the dashboard's variables.
        legend: with labels in double braces; in a table the name of the column.
        rare: it finds something only where something is wrong.
    """

    expr: str
    legend: str = ""
    rare: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: what it shows, in a few words.
        about: what the numbers are, and what to do where they are bad.
        unit: by Grafana's name: `s`, `percentunit`, `bytes`, `short`, `none` …
        queries: of Prometheus.
        kind: how it shows them.
        limits: colours from these values on, beside the plain one below them.
        base: the colour below all limits.
        width: of 24 columns.
        height: in rows of 30 pixels.
        stacked: whether series lie on each other.
        top: the greatest value that there can be.
        states: the colours of series, by their legends.
        columns: of a table: the labels that are shown, by their titles.
        units: of a table: those of columns that are not `unit`.
        needs: what a cluster must have for it to show anything: "GPU" (NVIDIA's dcgm-exporter), or nothing.
    """

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    limits: Mapping[float, str] = field(default_factory=dict)
    base: str = GOOD
    width: int = 8
    height: int = 8
    stacked: bool = False
    top: float | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a title that can be folded."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top. `query`: which values there are, as Grafana asks Prometheus; `several`: whether more than one may be chosen, and all are at first."""

    name: str
    label: str
    query: str
    several: bool = True


@dataclass(frozen=True, slots=True)
class Mark:
    """Moments that are marked in all panels, with a title."""

    name: str
    query: str
    title: str
    colour: str


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard."""

    uid: str
    title: str
    about: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...] = ()

    @property
    def panels(self) -> list[Panel]:
        """All of them, from top to bottom."""
        return [panel for row in self.rows for panel in row.panels]


def number(title: str, about: str, unit: str, expr: str, **more: object) -> Panel:
    """A single number, as it is now, with the line that led to it."""
    return Panel(title, about, unit, (Query(expr),), Kind.NUMBER, **{"width": 4, "height": 4, **more})  # type: ignore[arg-type]
