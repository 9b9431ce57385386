import pytest

from dev.benchmarks.scale.fleet import CASES, Fleet, outings, titles


def test_all_cases_are_done_in_four_outings() -> None:
    done = outings(CASES, 500)
    assert [outing.cases for outing in done] == [["a", "e"], ["b"], ["c", "f"], ["d"]]
    assert [(outing.fleet.jobs, outing.fleet.workers) for outing in done] == [(1, 500), (100, 8), (1000, 1), (1, 2000)]


@pytest.mark.parametrize(
    ("cases", "outing"), [("a", ["a"]), ("e", ["a", "e"]), ("f", ["c", "f"]), ("c", ["c"]), ("d", ["d"])]
)
def test_a_case_that_needs_another_brings_it_along(cases: str, outing: list[str]) -> None:
    assert [found.cases for found in outings(cases, 500)] == [outing]


def test_a_small_run_keeps_the_proportions() -> None:
    assert [outing.fleet.pods for outing in outings(CASES, 20)] == [20, 32, 40, 80]


def test_every_case_has_a_title() -> None:
    assert list(titles(500)) == list("abcdef")
    assert titles(500)["b"] == "100 jobs x 8 workers"
    assert Fleet(1000, 1).describe() == "1,000 jobs x 1 worker"


def test_names_are_the_jobs_own() -> None:
    assert Fleet(2, 3).names() == ["job-0", "job-1"]
