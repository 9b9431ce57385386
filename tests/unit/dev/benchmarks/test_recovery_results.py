import json
from dataclasses import replace
from pathlib import Path

import pytest

from dev.benchmarks.recovery import goodput
from dev.benchmarks.recovery.goodput import Goodput, away, earned, mixed, reported, table as goodput_table
from dev.benchmarks.recovery.milestones import Life
from dev.benchmarks.recovery.results import Run, hopeless, percentile, plain, rows
from dev.benchmarks.recovery.table import shortfalls, table


def run(seconds: float | None, *, fault: str = "kill", system: str = "trainyard", lost: int = 4, **parts: float) -> Run:
    return Run(fault, system, 0, seconds, None if seconds is None else lost, parts)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 5), (0.95, 10), (0.9, 9), (0.01, 1)], ids=["half", "p95 of ten", "p90", "least"]
)
def test_percentiles_are_values_that_were_measured(share: float, expected: float) -> None:
    assert percentile([10, 1, 2, 3, 9, 8, 4, 5, 6, 7], share) == expected


def test_what_never_recovers_is_slower_than_everything() -> None:
    (row,) = rows([run(3.0), run(5.0), run(None)])
    assert (row.n, row.never, row.p50_s, row.p95_s) == (3, 1, 5.0, None)
    (row,) = rows([run(3.0), run(None), run(None)])
    assert (row.p50_s, row.lost_steps) == (None, 4)


def test_rarely_observed_part_is_omitted() -> None:
    (row,) = rows([run(3.0, stop=1.0, start=2.0), run(3.0, start=4.0)])
    assert (row.parts["stop"], row.parts["start"]) == (None, 3.0)


def test_rows_are_as_the_file_has_them() -> None:
    found = [plain(row) for row in rows([run(3.0), run(1.0, system="jobset"), run(2.0, fault="pod")])]
    assert [(row["fault"], row["system"]) for row in found] == [
        ("kill", "trainyard"),
        ("kill", "jobset"),
        ("pod", "trainyard"),
    ]
    assert list(found[0]) == ["fault", "system", "n", "never", "p50_s", "p95_s", "lost_steps", "parts"]


@pytest.mark.parametrize("name", ["recovery", "frameworks"])
def test_published_rows_match_the_published_runs(name: str) -> None:
    published = Path(__file__).parents[4] / "docs/benchmarks"
    runs = [Run(**each) for each in json.loads((published / f"{name}-runs.json").read_text())["runs"]]
    assert json.loads((published / f"{name}.json").read_text()) == [plain(row) for row in rows(runs)]


def test_system_that_never_recovers_is_abandoned() -> None:
    runs = [run(None), run(3.0, system="jobset"), run(None, system="jobset"), run(None)]
    assert hopeless(runs, "kill", "trainyard", 2)
    assert not hopeless(runs, "kill", "trainyard", 3)
    assert not hopeless(runs, "kill", "jobset", 2)


def test_the_table_has_a_block_for_each_fault() -> None:
    page = table(rows([run(3.0, start=2.04), run(None, system="jobset")]), {"kill": "kill: one dies"})
    assert page.splitlines() == [
        "kill: one dies",
        "  system                n never  p50 s  p95 s  lost |  detect  decide    stop   start  import connect    load    step",
        "  trainyard             1     -    3.0    3.0     4 |       -       -       -     2.0       -       -       -       -",
        "  jobset                1     1  never  never     - |       -       -       -       -       -       -       -       -",
    ]


def test_each_figure_that_is_missed_has_its_sentence() -> None:
    runs = [run(6.0), run(5.0, system="jobset"), run(None, system="training-operator"), run(None, fault="pod")]
    assert shortfalls(rows(runs), {"kill": 5, "pod": 15}) == [
        "kill: the median is 6.0 s; the target is 5 s",
        "kill: 6.0 s is not ahead of jobset with 5.0 s",
        "pod: the median is never s; the target is 15 s",
    ]


def test_steps_that_are_done_again_earn_nothing() -> None:
    lives = [
        Life(0, steps=[(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]),
        Life(1, steps=[(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]),
        Life(0, steps=[(3, 13.0), (4, 14.0), (5, 15.0), (6, 99.0)]),
    ]
    assert earned(lives, began=2.0, ended=20.0) == (3, 2, 1.0)
    assert earned([], began=2.0, ended=20.0) == (0, 0, 0.0)


def test_the_script_goes_round() -> None:
    script = mixed(4, {"kill", "pods"})
    assert [fault.name for fault in script.faults] == ["kill", "kill", "pods", "kill"]
    assert script.pace == 60


def test_operator_outage_runs_without_other_faults() -> None:
    script = away(10)
    assert [fault.name for fault in script.faults] == ["away"]
    assert (script.undo, script.pace) == (600, 630)


OURS = Goodput("trainyard", 20, 20, 1, 0.8765, 9000, 120, 0.105, 0.8912, {"recovery": 90.5})
THEIRS = Goodput("jobset", 20, 20, 1, 0.5, 9000, 120, 0.105)


def test_the_table_of_goodput() -> None:
    assert goodput_table([OURS, THEIRS]).splitlines() == [
        "system                goodput  reported  points   steps   lost  step s  missed",
        "trainyard               87.6%     89.1%    +1.5    9000    120   0.105       1",
        "jobset                  50.0%         -       -    9000    120   0.105       1",
    ]


def test_file_contains_reported_goodput_and_its_error() -> None:
    row = goodput.plain(OURS)
    assert (row["goodput"], row["reported"], row["points_off"], row["lost_s"]) == (
        0.8765,
        0.8912,
        1.47,
        {"recovery": 90.5},
    )
    assert goodput.plain(THEIRS)["points_off"] is None


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.89, "the reported goodput (89.0%) is within 2 points of that of the logs (87.6%)"),
        (0.8566, "the reported goodput (85.7%) is within 2 points of that of the logs (87.6%)"),
        (0.8564, "the reported goodput (85.6%) IS NOT within 2 points of that of the logs (87.6%)"),
        (0.8967, "the reported goodput (89.7%) IS NOT within 2 points of that of the logs (87.6%)"),
        (None, "the job reports no goodput"),
    ],
)
def test_two_points_are_within_two_points(share: float | None, words: str) -> None:
    row = replace(OURS, reported=share)
    assert goodput.verdict(row) == f"trainyard: {words}"
    assert goodput.agrees(row) is ("is within" in words)


def test_reported_seconds_are_differences_between_two_readings() -> None:
    before, after = {"productive": 10.0, "recovery": 2.5}, {"productive": 100.04, "recovery": 2.5, "other": 7.0}
    assert reported(before, after) == {"productive": 90.0, "recovery": 0.0, "other": 7.0}
    assert reported(None, after) == reported(before, None) == {}
