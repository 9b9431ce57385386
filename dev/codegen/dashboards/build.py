"""Build panels with grafana-foundation-sdk, laid out from left to right and top to bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as words, dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dev.codegen.dashboards.panels import COUNT, JOB, PLAIN, Board, Kind, Mark, Panel, Row, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS: Final = 24
TAG: Final = "trainyard"
SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
NAMED_JOB: Final = f"/d/{JOB}?${{datasource:queryparam}}&var-namespace=${{__field.labels.namespace}}&var-name=${{__field.labels.name}}&${{__url_time_range}}"
ROW_JOB: Final = f"/d/{JOB}?${{datasource:queryparam}}&var-namespace=${{__data.fields.Namespace}}&var-name=${{__data.fields.Job}}&${{__url_time_range}}"


def build(board: Board) -> models.Dashboard:
    """Return the dashboard in the form that Grafana imports."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags([TAG])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .link(
            dashboard.DashboardLink("Trainyard")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in board.variables:
        made = made.with_variable(_variable(variable))
    for mark in board.marks:
        made = made.annotation(_mark(mark))
    number = 0
    for row, top, places in laid_out(board.rows):
        made = made.with_row(dashboard.Row(row.title).grid_pos(models.GridPos(h=1, w=COLUMNS, x=0, y=top)))
        for panel, at in zip(row.panels, places, strict=True):
            number += 1
            made = made.with_panel(_panel(panel, number, at))
    return made.build()


def laid_out(rows: tuple[Row, ...]) -> Iterator[tuple[Row, int, list[models.GridPos]]]:
    """Yield each row with the line of its title and the positions of its panels."""
    y = 0
    for row in rows:
        top, x, line, places = y, 0, 0, []
        y += 1
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line = 0, y + line, 0
            places.append(models.GridPos(h=panel.height, w=panel.width, x=x, y=y))
            x, line = x + panel.width, max(line, panel.height)
        y += line
        yield row, top, places


def _variable(variable: Variable) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(variable.several)
        .include_all(variable.several)
    )
    if variable.several:
        made = made.all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    return made


def _mark(mark: Mark) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name(mark.name)
        .datasource(SOURCE)
        .enable(True)
        .icon_color(mark.colour)
        .expr(mark.query)
        .title_format(mark.title)
        .step("30s")
    )


def _panel(panel: Panel, number: int, at: models.GridPos) -> Any:
    made: Any = _KINDS[panel.kind](panel)
    made = (
        made.id(number)
        .title(f"{panel.title} ({panel.needs})" if panel.needs else panel.title)
        .description(panel.about)
        .unit(panel.unit)
        .datasource(SOURCE)
        .grid_pos(at)
        .thresholds(_limits(panel))
        .no_value(f"needs {panel.needs}" if panel.needs else "nothing")
    )
    for letter, query in zip("ABCDEFGHIJKL", panel.queries, strict=False):
        target = prometheus.Dataquery().ref_id(letter).expr(query.expr).datasource(SOURCE)
        target = target.legend_format(query.legend or "__auto")
        made = made.with_target(
            target.instant().format(PromQueryFormat.TABLE) if panel.kind is Kind.TABLE else target.range()
        )
    for series, colour in panel.states.items():
        fixed = {"mode": models.FieldColorModeId.FIXED, "fixedColor": colour}
        made = made.override_by_name(series, [models.DynamicConfigValue(id_val="color", value=fixed)])
    if panel.bottom is not None and panel.kind in {Kind.LINES, Kind.BY_RANK, Kind.NUMBER}:
        made = made.min(panel.bottom)
    if panel.top is not None:
        made = made.max(panel.top)
    if panel.unit == COUNT and panel.kind is not Kind.TABLE:
        made = made.decimals(0)
    if panel.kind is not Kind.TABLE and any("by (namespace, name" in query.expr for query in panel.queries):
        made = made.data_links([_link("This job", NAMED_JOB)])
    return made


def _limits(panel: Panel) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color=panel.base if panel.limits else PLAIN)]
    steps += [models.Threshold(value=value, color=colour) for value, colour in sorted(panel.limits.items())]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _lines(panel: Panel) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions().display_mode(words.LegendDisplayMode.TABLE).placement(words.LegendPlacement.BOTTOM)
    )
    made = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(30 if panel.stacked else 8)
        .show_points(words.VisibilityMode.NEVER)
        .legend(legend.show_legend(True).calcs(["lastNotNull", "max"]))
        .tooltip(common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI).sort(words.SortOrder.DESCENDING))
    )
    if panel.stacked:
        made = made.stacking(common.StackingConfig().mode(words.StackingMode.NORMAL))
    if panel.limits:
        made = made.thresholds_style(common.GraphThresholdsStyleConfig().mode(words.GraphThresholdsStyleMode.DASHED))
    return made


def _number(_: Panel) -> stat.Panel:
    kept = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
    return (
        stat.Panel()
        .reduce_options(kept)
        .graph_mode(words.BigValueGraphMode.AREA)
        .color_mode(words.BigValueColorMode.VALUE)
    )


def _states(_: Panel) -> statetimeline.Panel:
    return statetimeline.Panel().show_value(words.VisibilityMode.NEVER).row_height(0.8)


def _by_rank(_: Panel) -> statushistory.Panel:
    colours = dashboard.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_GR_YL_RD)
    made = statushistory.Panel().show_value(words.VisibilityMode.NEVER).color_scheme(colours).row_height(0.95)
    return made.legend(common.VizLegendOptions().show_legend(False)).tooltip(
        common.VizTooltipOptions().mode(words.TooltipDisplayMode.SINGLE)
    )


def _table(panel: Panel) -> table.Panel:
    names = {f"Value #{letter}": query.legend for letter, query in zip("ABCDEFGHIJKL", panel.queries, strict=False)}
    order = [*panel.columns, *names]
    organised = {
        "excludeByName": {"Time": True},
        "indexByName": {each: at for at, each in enumerate(order)},
        "renameByName": dict(panel.columns) | names,
    }
    made = (
        table.Panel()
        .with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(models.DataTransformerConfig(id_val="organize", options=organised))
    )
    for column, unit in panel.units.items():
        made = made.override_by_name(column, [models.DynamicConfigValue(id_val="unit", value=unit)])
    if "name" in panel.columns:
        link = {"title": "This job", "url": ROW_JOB}
        made = made.override_by_name(panel.columns["name"], [models.DynamicConfigValue(id_val="links", value=[link])])
    return made


def _link(title: str, url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).type(models.DashboardLinkType.LINK).url(url)


_KINDS: Final = {
    Kind.LINES: _lines,
    Kind.NUMBER: _number,
    Kind.STATES: _states,
    Kind.BY_RANK: _by_rank,
    Kind.TABLE: _table,
}
