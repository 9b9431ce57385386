"""The dashboards comply with the rules of Grafana's linter and with ours. tests/cluster/test_dashboards.py runs their
queries.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dev.codegen.dashboards.__main__ import BOARDS, FOLDER, main, text
from dev.codegen.dashboards.panels import CORES, COUNT, JOB, Board, Kind

ROOT = Path(__file__).parents[5]
OTHERS = re.compile(r"container_|process_|DCGM_FI_")
"""Metrics of the kubelets, of the client library and of NVIDIA's exporter."""
WORDS = re.compile(r"\b(?:[a-z]+_)+[a-z0-9_]+\b|\bDCGM_FI_\w+")

MOST = "Jobs with most restarts", "Nodes that ended most attempts"
"""The panels that are empty while nothing fails."""

every_board = pytest.mark.parametrize("board", BOARDS, ids=[board.uid for board in BOARDS])


def documented_metrics() -> set[str]:
    """Return all documented metrics, histograms with the names of their series."""
    pages = ("docs/reference/metrics.md", "docs/training/monitoring.md")
    rows = [line for page in pages for line in (ROOT / page).read_text().splitlines() if line.startswith("| `")]
    names = {row.split("`")[1]: row for row in rows}
    return {*names, *(f"{name}_bucket" for name, row in names.items() if "| histogram |" in row)}


def panels(board: Board) -> Iterator[dict[str, Any]]:
    for panel in json.loads(text(board))["panels"]:
        if panel["type"] != "row":
            yield panel


@every_board
def test_committed_dashboard_is_current(board: Board) -> None:
    assert (ROOT / FOLDER / f"{board.uid}.json").read_text() == text(board), "run `make generate`"


def test_dashboards_are_written_below_the_root(tmp_path: Path) -> None:
    main([str(tmp_path)])
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} == {f"{board.uid}.json" for board in BOARDS}


@every_board
def test_dashboard_metadata_and_variables(board: Board) -> None:
    made = json.loads(text(board))
    assert made["title"].startswith("Trainyard / ")
    assert made["description"]
    assert made["editable"] is False
    assert made["uid"] == board.uid
    first, *others = made["templating"]["list"]
    assert (first["name"], first["type"], first["label"]) == ("datasource", "datasource", "Data source")
    assert all(each["refresh"] == 2 for each in others), "jobs come and go"
    assert made["links"][0]["includeVars"]
    assert made["links"][0]["keepTime"]


@every_board
def test_panels_have_description_unit_and_thresholds(board: Board) -> None:
    titles = [panel["title"] for panel in panels(board)]
    for row in board.rows:
        assert len({panel.title for panel in row.panels}) == len(row.panels)
    assert len(titles) == len(board.panels)
    for panel in panels(board):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert target["legendFormat"], panel["title"]


@every_board
def test_series_have_distinct_legends(board: Board) -> None:
    for panel in board.panels:
        if panel.kind is not Kind.NUMBER:
            legends = [query.legend for query in panel.queries]
            assert all(legends), panel.title
            assert len(set(legends)) == len(legends), panel.title


@every_board
def test_panels_have_data_without_failures(board: Board) -> None:
    for panel in board.panels:
        assert not all(query.rare for query in panel.queries) or panel.title in MOST, panel.title


@every_board
def test_panels_do_not_overlap(board: Board) -> None:
    taken = [
        (y, x)
        for panel in json.loads(text(board))["panels"]
        for at in [panel["gridPos"]]
        for y in range(at["y"], at["y"] + at["h"])
        for x in range(at["x"], at["x"] + at["w"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for _, x in taken) < 24
    rows = sorted({y for y, _ in taken})
    assert all(after - before == 1 for before, after in pairwise(rows)), "a gap"


@every_board
def test_queries_use_known_metrics(board: Board) -> None:
    known = documented_metrics()
    queries = [query.expr for panel in board.panels for query in panel.queries]
    queries += [variable.query for variable in board.variables] + [mark.query for mark in board.marks]
    for query in queries:
        bare = re.sub(r'"[^"]*"|\'[^\']*\'', "", query)
        names = {word for word in WORDS.findall(bare) if "_" in word}
        names -= {
            "label_values",
            "group_left",
            "histogram_quantile",
            "sum_over_time",
            "clamp_min",
            "trainyard_dev_job_name",
        }
        names -= {"__rate_interval", "__range"}
        assert all(name in known or OTHERS.match(name) for name in names), (query, names - known)
        for counter in re.findall(r"(\w+_total)\b", bare):
            assert re.search(rf"(rate|increase)\({counter}|sum by [^=]*{counter}|max by [^=]*{counter}", bare), query


@every_board
def test_gpu_panels_are_marked(board: Board) -> None:
    for panel, made in zip(board.panels, panels(board), strict=True):
        of_gpu = any("DCGM" in query.expr for query in panel.queries)
        assert (panel.needs == "GPU") == of_gpu
        assert made["title"].endswith("(GPU)") == of_gpu


@every_board
def test_axes_start_at_zero_unless_signed(board: Board) -> None:
    signed = {"Loss", "Network throughput", "Clock skew"}
    for panel, made in zip(board.panels, panels(board), strict=True):
        if panel.kind is Kind.LINES:
            least = made["fieldConfig"]["defaults"].get("min")
            assert (least is None) == (panel.title in signed), panel.title
            assert least in {None, 0}, panel.title


@every_board
def test_counts_are_whole_numbers(board: Board) -> None:
    for panel, made in zip(board.panels, panels(board), strict=True):
        defaults = made["fieldConfig"]["defaults"]
        assert defaults["unit"] != "short", f"{panel.title}: no unit"
        if defaults["unit"] == COUNT and panel.kind is not Kind.TABLE:
            assert defaults["decimals"] == 0, panel.title


@every_board
def test_colours_of_heat_maps_have_a_fixed_range(board: Board) -> None:
    for panel, made in zip(board.panels, panels(board), strict=True):
        if panel.kind is Kind.BY_RANK:
            defaults = made["fieldConfig"]["defaults"]
            assert defaults["min"] < 1.5 < defaults["max"], "1.5 times the median is a straggler"


@every_board
def test_processor_time_is_in_cores(board: Board) -> None:
    found = [panel for panel in board.panels if any("cpu" in query.expr for query in panel.queries)]
    assert all(panel.unit == CORES for panel in found)


def test_restarts_and_attempts_are_marked_in_all_panels() -> None:
    (job,) = (board for board in BOARDS if board.uid == JOB)
    marks = json.loads(text(job))["annotations"]["list"]
    assert [mark["name"] for mark in marks if mark["enable"]] == ["Restarts", "Attempts"]
    assert not any("filter" in mark for mark in marks), "no panel is left out"
