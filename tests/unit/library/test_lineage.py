from math import inf, nan
from typing import Any

import pytest

from trainyard_torch.checkpoint.lineage import Claim, JobAttempt, Retention, past, usable
from trainyard_torch.checkpoint.manifest import Name

N = Name


def test_the_newest_is_the_best() -> None:
    assert usable([N(10, 1), N(30, 1), N(20, 1)], [Claim(1, None)], 2) == [N(30, 1), N(20, 1), N(10, 1)]


def test_commits_of_a_stale_attempt_are_ignored() -> None:
    claims = [Claim(1, None), Claim(2, N(10, 1))]
    assert usable([N(10, 1), N(20, 1), N(12, 2)], claims, 3) == [N(12, 2), N(10, 1)]
    assert usable([N(10, 1), N(20, 1)], claims, 2) == [N(20, 1), N(10, 1)], "its own claim says nothing to itself"


def test_who_fell_back_goes_on_from_there() -> None:
    claims = [Claim(1, None), Claim(2, N(20, 1)), Claim(3, N(10, 1))]
    names = [N(10, 1), N(20, 1), N(30, 2), N(15, 3)]
    assert usable(names, claims, 4) == [N(15, 3), N(10, 1)]


def test_starting_over_leaves_all_behind() -> None:
    assert usable([N(10, 1), N(5, 2)], [Claim(1, None), Claim(2, None)], 3) == [N(5, 2)]


def test_a_claim_that_cannot_be_read_costs_nothing() -> None:
    assert usable([N(10, 1)], [Claim(2, None, legible=False)], 3) == [N(10, 1)]


def test_a_later_attempt_is_none_of_ours() -> None:
    assert usable([N(10, 1), N(20, 5)], [Claim(5, N(10, 1))], 2) == [N(10, 1)]


NAMES = [N(step) for step in (50, 40, 30, 20, 10)]
LOSSES = {N(50): 0.9, N(40): 0.2, N(30): 0.5, N(20): nan, N(10): 0.2}
METRICS = {name: {"loss": loss} for name, loss in LOSSES.items()}


@pytest.mark.parametrize(
    ("keep", "gone"),
    [
        (Retention(last=2), [30, 20, 10]),
        (Retention(last=9), []),
        (Retention(last=1, best=1, metric="loss"), [30, 20, 10]),
        (Retention(last=1, best=2, metric="loss"), [30, 20]),
        (Retention(last=1, best=9, metric="loss"), [20]),
        (Retention(last=1, best=1, metric="loss", greater_is_better=True), [40, 30, 20, 10]),
        (Retention(last=1, best=3, metric="accuracy"), [40, 30, 20, 10]),
    ],
)
def test_what_is_kept(keep: Retention, gone: list[int]) -> None:
    assert [name.step for name in keep.superfluous(NAMES, METRICS)] == gone


def test_what_is_no_number_is_never_best() -> None:
    """As an earlier release has written it."""
    metrics: Any = {N(50): {"loss": None}, N(40): {"loss": 0.1}, N(30): {"loss": "0.0"}}
    assert Retention(last=1, best=1, metric="loss").superfluous([N(50), N(40), N(30)], metrics) == [N(30)]


def test_the_worst_of_all_values() -> None:
    metrics = {N(50): {"loss": inf}, N(40): {"loss": -inf}}
    assert Retention(last=1, best=1, metric="loss").superfluous([N(50), N(40), N(30)], metrics) == [N(30)]


@pytest.mark.parametrize("bad", [{"last": 0}, {"best": -1}, {"best": 1}])
def test_rules_that_make_no_sense(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"last must|best needs"):
        Retention(**bad)  # type: ignore[arg-type]  # numbers alone


def test_duration_and_number_of_starts() -> None:
    job, other = JobAttempt("job", 3), JobAttempt("other", 1)
    claims = [Claim(1, None, "a", JobAttempt("job", 1), 1000.0), Claim(2, None, "b", other, 500.0)]
    claims += [Claim(3, None, "c", JobAttempt("job", 2), 1500.0, legible=False), Claim(4, None, "d", job, 1600.0)]
    assert past(claims, job, 2000.0) == (1000.0, 2)
    assert past(claims, other, 2000.0) == (1500.0, 0)
    assert past([], job, 2000.0) == (0.0, 0)
    assert past([Claim(1, None, "a", job, 9000.0)], job, 2000.0) == (0.0, 0), "a clock that was set back"
