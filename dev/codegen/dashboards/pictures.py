"""`uv run --group pictures python -m dev.codegen.dashboards.pictures FOLDER NAMESPACE JOB [UNTIL]` draws the dashboards for the
docs.

The pictures show the data of the local cluster's Prometheus up to now, or up to UNTIL (seconds since 1970). They have
the layout, queries, units and limits of the dashboards, but not Grafana's drawing. Panels that need a GPU are left out.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

from dev.codegen.dashboards.__main__ import BOARDS
from dev.codegen.dashboards.build import COLUMNS, laid_out
from dev.codegen.dashboards.panels import COUNT, Board, Kind, Panel, Row
from dev.codegen.dashboards.prometheus import Asked, Series
from dev.localcluster.addresses import PROMETHEUS_URL

if TYPE_CHECKING:
    from collections.abc import Callable

mpl.use("agg")
from matplotlib import pyplot as plt

SECONDS: Final = 360
INCHES: Final = (0.62, 0.42)
"""Width of a column and height of a row."""
LINES: Final = 8
"""Most series that get a legend."""
LEGEND_ROWS: Final = 2.2
"""Rows below a panel's lines, for the clock and a legend of up to eight series in three columns."""
LONGEST_NAME: Final = 36
"""Characters of a legend's text."""
MARK_SECONDS: Final = 15.0
"""Marks closer than this are one mark."""
TIMED: Final = frozenset({Kind.LINES, Kind.STATES, Kind.BY_RANK})
"""The kinds of panels that have a time axis."""
PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def text(value: float, unit: str) -> str:
    """Format a number for people."""
    if unit == COUNT:
        return f"{value:,.0f}"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s" and value:
        return (
            f"{value / 60:.3g} min" if value >= 120 else f"{value:.3g} s" if value >= 0.1 else f"{1000 * value:.3g} ms"
        )
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES if abs(value) >= size), (1.0, ""))
    if unit.startswith("suffix:"):
        return f"{value / size:.3g}{prefix} {unit.partition(':')[2].strip()}"
    short = {"s": " s", "bytes": "B", "binBps": "B/s", "h": " h", "ops": "/s", "reqps": "/s", "cpm": "/min"}.get(
        unit, ""
    )
    return f"{value / size:.4g}{prefix}{short}"


def draw(board: Board, asked: Asked, file: Path) -> None:
    """Draw one dashboard into a file."""
    rows = tuple(
        Row(row.title, kept) for row in board.rows if (kept := tuple(each for each in row.panels if not each.needs))
    )
    places = list(laid_out(rows))
    height = max(at.y + at.h for _, _, of_row in places for at in of_row)
    marks = [
        (at, mark.colour)
        for mark in board.marks
        for each in asked.found(mark.query)
        for at in starts([point for point, _ in each.points])
    ]
    figure = plt.figure(figsize=(COLUMNS * INCHES[0], height * INCHES[1]), dpi=72)
    for row, top, of_row in places:
        figure.text(0.008, 1 - (top + 0.7) / height, row.title, fontsize=12, fontweight="bold")
        for panel, at in zip(row.panels, of_row, strict=True):
            # Below the lines there is room for the legend and the clock.
            below = LEGEND_ROWS if panel.kind is Kind.LINES else 0.9
            left, low = (at.x + 1.3) / COLUMNS, 1 - (at.y + at.h - below) / height
            axes = figure.add_axes((left, low, (at.w - 1.7) / COLUMNS, (at.h - below - 1.1) / height))
            axes.set_title(panel.title, fontsize=9, loc="left")
            found = [(query, each) for query in panel.queries for each in asked.series(panel, query)]
            _KINDS[panel.kind](axes, panel, [each for _, each in found])
            if panel.kind in TIMED and found:
                _draw_marks(axes, marks)
            elif panel.kind in TIMED:
                axes.set(xticks=[], yticks=[])
                axes.text(0.5, 0.5, "no data", ha="center", va="center", transform=axes.transAxes)
    figure.savefig(file)
    plt.close(figure)


def _lines(axes: Any, panel: Panel, series: list[Series]) -> None:
    if panel.stacked and series:
        _stack(axes, panel, series)
    else:
        for each in series:
            moments, values = [_moment(at) for at, _ in each.points], [value for _, value in each.points]
            axes.plot(moments, values, label=each.name, linewidth=1)
    _draw_limits(axes, panel)
    highest = max((value for each in series for _, value in each.points), default=0.0)
    if panel.bottom is not None:
        # A line of zeros lies at the bottom, not in the middle.
        axes.set_ylim(
            bottom=panel.bottom, top=panel.top or (1.0 if not highest else None if panel.stacked else 1.05 * highest)
        )
    if panel.unit == COUNT:
        axes.yaxis.set_major_locator(mpl.ticker.MaxNLocator(nbins=5, integer=True))
    if 0 < len(series) <= LINES:
        names = [shortened(each.name) for each in series]
        axes.legend(
            *(axes.get_legend_handles_labels()[0], names),
            fontsize=6,
            loc="upper left",
            bbox_to_anchor=(0.0, -0.14),
            ncol=3 if max(map(len, names)) <= LONGEST_NAME // 2 else 2,
            frameon=False,
            borderaxespad=0.0,
        )
    axes.yaxis.set_major_formatter(lambda value, _: text(value, panel.unit))
    _clock(axes)


def starts(moments: list[float], apart: float = MARK_SECONDS) -> list[float]:
    """Return the first moment of each run of moments: a counter's increase is seen for a minute."""
    return [at for before, at in zip([float("-inf"), *moments], moments, strict=False) if at - before > apart]


def shortened(name: str) -> str:
    """Return a legend's text without its middle, where it is too long: the end of a pod's name is its own."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _draw_marks(axes: Any, marks: list[tuple[float, str]]) -> None:
    for at, colour in marks:
        axes.axvline(_moment(at), color=colour, linestyle=":", linewidth=0.9)


def _stack(axes: Any, panel: Panel, series: list[Series]) -> None:
    moments = sorted({at for each in series for at, _ in each.points})
    heights = [[dict(each.points).get(at, 0.0) for at in moments] for each in series]
    names = [each.name for each in series]
    # Grafana has colours of its own for text.
    known = {"text": "gray"}
    colours = (
        [known.get(panel.states[name], panel.states[name]) for name in names] if {*names} <= {*panel.states} else None
    )
    axes.stackplot([_moment(at) for at in moments], heights, labels=names, colors=colours, alpha=0.7)


def _draw_limits(axes: Any, panel: Panel) -> None:
    highest = axes.get_ylim()[1]
    for limit, colour in panel.limits.items():
        if limit <= highest:
            axes.axhline(limit, color=colour, linestyle="--", linewidth=0.8)


def _number(axes: Any, panel: Panel, series: list[Series]) -> None:
    axes.axis("off")
    if not series:
        return
    value = series[0].points[-1][1]
    colour = panel.base if panel.limits else "black"
    for limit, beyond in sorted(panel.limits.items()):
        colour = beyond if value >= limit else colour
    axes.text(
        0.5,
        0.45,
        text(value, panel.unit),
        fontsize=20,
        ha="center",
        va="center",
        color=colour,
        transform=axes.transAxes,
    )


def _states(axes: Any, panel: Panel, series: list[Series]) -> None:
    for number, each in enumerate(series):
        colour = panel.states.get(each.name, "gray")
        axes.scatter(
            [_moment(at) for at, _ in each.points],
            [number] * len(each.points),
            marker="s",
            s=60,
            color="gray" if colour == "text" else colour,
        )
    axes.set_yticks(range(len(series)), [each.name for each in series])
    axes.set_ylim(-0.6, len(series) - 0.4)
    _clock(axes)


def _by_rank(axes: Any, panel: Panel, series: list[Series]) -> None:
    moments = sorted({at for each in series for at, _ in each.points})
    cells = [[dict(each.points).get(at, float("nan")) for at in moments] for each in series]
    if not cells:
        return
    shown = axes.pcolormesh(
        [_moment(at) for at in moments],
        range(len(series)),
        cells,
        cmap="RdYlGn_r",
        shading="nearest",
        vmin=panel.bottom,
        vmax=panel.top,
    )
    axes.set_yticks(range(len(series)), [each.name for each in series])
    bar = axes.figure.colorbar(shown, ax=axes, pad=0.01)
    bar.ax.yaxis.set_major_formatter(lambda value, _: text(value, panel.unit))
    bar.ax.tick_params(labelsize=7)
    _clock(axes)


def _table(axes: Any, panel: Panel, series: list[Series]) -> None:
    axes.axis("off")
    keys = sorted({tuple(each.labels.get(label, "") for label in panel.columns) for each in series})
    cells = []
    for key in keys:
        of_it = {
            each.name: each.points[-1][1]
            for each in series
            if tuple(each.labels.get(label, "") for label in panel.columns) == key
        }
        numbers = [
            text(of_it[query.legend], panel.units.get(query.legend, panel.unit)) if query.legend in of_it else ""
            for query in panel.queries
        ]
        cells.append([*key, *numbers])
    if cells:
        table = axes.table(
            cells, colLabels=[*panel.columns.values(), *(query.legend for query in panel.queries)], loc="upper center"
        )
        table.auto_set_font_size(value=False)
        table.set_fontsize(9)
        table.scale(1, 1.4)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _clock(axes: Any) -> None:
    axes.xaxis.set_major_formatter(mpl.dates.DateFormatter("%H:%M"))
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, linewidth=0.3)


_KINDS: Final[dict[Kind, Callable[[Any, Panel, list[Series]], None]]] = {
    Kind.LINES: _lines,
    Kind.NUMBER: _number,
    Kind.STATES: _states,
    Kind.BY_RANK: _by_rank,
    Kind.TABLE: _table,
}


def main(arguments: list[str]) -> None:
    """Draw all dashboards."""
    folder, namespace, job, *more = arguments
    until = float(more[0]) if more else None
    asked = Asked(PROMETHEUS_URL, {"namespace": namespace, "name": job}, seconds=SECONDS, until=until)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        draw(board, asked, Path(folder) / f"{board.uid}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
