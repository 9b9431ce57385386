"""The elements of a dashboard as data, which tests read too."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

GOOD, POOR, BAD, PLAIN = "green", "orange", "red", "blue"
COUNT, CORES, PER_SECOND = "locale", "suffix: cores", "suffix: s/s"
"""Grafana's names of units: whole numbers, cores of a CPU, and seconds that pass in each second."""
FLEET, JOB, OPERATOR = "trainyard-fleet", "trainyard-job", "trainyard-operator"
"""The UIDs of the dashboards, which they link to each other by."""


class Kind(StrEnum):
    """How a panel shows its numbers."""

    LINES = "timeseries"
    NUMBER = "stat"
    STATES = "state-timeline"
    BY_RANK = "status-history"
    """A row for each series and a cell for each moment, coloured by value: the heat map of ranks."""
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of Prometheus.

    Attributes:
        expr: PromQL, with the dashboard's variables.
        legend: the text with labels in double braces; in a table the name of the column.
        rare: it has a result only if something is wrong.
    """

    expr: str
    legend: str = ""
    rare: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: what it shows, in a few words.
        about: what the numbers are, and what to do if they are bad.
        unit: Grafana's name of the unit: `s`, `percentunit`, `bytes`, `none`, COUNT …
        queries: its queries of Prometheus.
        kind: how it shows them.
        limits: colours by the value from which they apply.
        base: the colour below all limits.
        width: of 24 columns.
        height: in rows of 30 pixels.
        stacked: whether series are stacked.
        bottom: the least value of the axis; None if values may be negative.
        top: the greatest possible value, or the end of a heat map's colours.
        states: the colours of series by legend.
        columns: of a table: the titles of the shown labels.
        units: of a table: the units of columns that differ from `unit`.
        needs: a requirement of the panel: "GPU" (NVIDIA's dcgm-exporter), or empty.
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
    bottom: float | None = 0.0
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
    """A choice at the top.

    Attributes:
        query: its possible values, as Grafana asks Prometheus for them.
        several: whether more than one may be chosen; all are chosen at first.
    """

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
        """Return all panels, from top to bottom."""
        return [panel for row in self.rows for panel in row.panels]


def number(title: str, about: str, unit: str, expr: str, **more: object) -> Panel:
    """Return a panel with a single number, as it is now, above its history."""
    return Panel(title, about, unit, (Query(expr),), Kind.NUMBER, **{"width": 4, "height": 4, **more})  # type: ignore[arg-type]
