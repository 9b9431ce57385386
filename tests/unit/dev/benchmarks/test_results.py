import pytest

from dev.benchmarks.scale.results import Run, median, plain, rows


@pytest.mark.parametrize(
    ("values", "result"),
    [([3.0, 1.0, 2.0], 2.0), ([1.0, 2.0], 1.5), ([1.0, None, 2.0], 2.0), ([1.0, None, None], None), ([], None)],
)
def test_never_is_later_than_all(values: list[float | None], result: float | None) -> None:
    assert median(values) == result


def run(system: str, repeat: int = 0, *, case: str = "a", **figures: object) -> Run:
    return Run(case, system, repeat, 500, **figures)  # type: ignore[arg-type]  # spelled out by the caller


def test_a_row_holds_the_medians_of_the_repeats() -> None:
    (row,) = rows(
        [
            run("trainyard", 0, created_s=2.0, cpu_s=1.0, rss_mib=80.0, calls={"POST pods": 500, "GET": 1}),
            run("trainyard", 1, created_s=9.0, cpu_s=3.0, rss_mib=90.0, calls={"POST pods": 500}),
            run("trainyard", 2, created_s=3.0, cpu_s=2.0, rss_mib=85.0, calls={"POST pods": 501}, note="odd"),
        ]
    )
    assert plain(row) == {
        "case": "a",
        "system": "trainyard",
        "created_s": 3.0,
        "running_s": None,
        "status_s": None,
        "cpu_s": 2.0,
        "rss_mib": 85.0,
        "calls": {"GET": 0, "POST pods": 500},
        "note": "odd",
    }


def test_rows_are_ordered_by_case_and_first_repeat() -> None:
    runs = [run(system, repeat, case=case) for repeat in (0, 1) for case in "ba" for system in ("raw", "jobset")]
    assert [(row.case, row.system) for row in rows(runs)] == [
        ("a", "raw"),
        ("a", "jobset"),
        ("b", "raw"),
        ("b", "jobset"),
    ]


def test_controller_manager_work_counts_toward_its_cause() -> None:
    runs = [
        run("trainyard", cpu_s=1.0, controller_manager_s=2.0, controller_manager_calls={"PUT": 100}),
        run(
            "jobset",
            cpu_s=0.5,
            calls={"POST jobs": 1},
            controller_manager_s=3.5,
            controller_manager_calls={"PUT": 90, "POST": 600},
        ),
    ]
    ours, theirs = rows(runs, ["jobset"])
    assert (ours.cpu_s, theirs.cpu_s) == (1.0, 2.0)
    assert theirs.calls == {"POST jobs": 1, "POST by kube-controller-manager": 600}


def test_without_a_baseline_it_pays_for_everything() -> None:
    (row,) = rows([run("jobset", cpu_s=0.5, controller_manager_s=3.5)], ["jobset"])
    assert row.cpu_s == 4.0
