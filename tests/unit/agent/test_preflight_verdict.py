"""What a comparison of nodes concludes: the right worker, and none in a healthy group."""

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from trainyard_agent.preflight_verdict import Measured, Pair, Verdict, by_index, rounds, verdict

SIZES = st.integers(2, 40)
NOISE = st.floats(1.0, 1.4)
Factor = Callable[[int, int], float]


def group(
    workers: int, most: int, *, product: Callable[[int], float], link: Factor, gpu: bool = False
) -> list[Measured]:
    """Return what a group measures. `product`: milliseconds by worker; `link`: milliseconds by the two ends, the lower one first."""
    found: list[dict[int, float]] = [{} for _ in range(workers)]
    for pairs in rounds(workers, most):
        for first, second in pairs:
            found[first][second] = found[second][first] = link(first, second) / 1000
    return [Measured(each, product(each) / 1000, found[each], gpu) for each in range(workers)]


@given(SIZES, st.integers(1, 63))
def test_no_worker_is_twice_in_a_round(workers: int, most: int) -> None:
    made = rounds(workers, most)
    assert len(made) <= most
    for pairs in made:
        ends = [each for pair in pairs for each in pair]
        assert len(ends) == len({*ends}) >= workers - 1
        assert all(0 <= first < second < workers for first, second in pairs)


@given(SIZES)
def test_all_pairs_meet_once_in_the_end(workers: int) -> None:
    pairs = [pair for made in rounds(workers, 1000) for pair in made]
    assert len(pairs) == len({*pairs}) == workers * (workers - 1) // 2


@given(SIZES, st.data(), st.booleans())
def test_healthy_groups_are_never_blamed(workers: int, data: st.DataObject, gpu: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
    noise = lambda *_: data.draw(NOISE)  # noqa: E731
    assert verdict(group(workers, 7, product=noise, link=noise, gpu=gpu)) is None


@given(SIZES, st.data(), st.floats(3.0, 100.0))
def test_slow_processor_is_named(workers: int, data: st.DataObject, factor: float) -> None:
    slow = data.draw(st.integers(0, workers - 1))
    product = lambda each: data.draw(NOISE) * (factor if each == slow else 1)  # noqa: E731
    found = verdict(group(workers, 7, product=product, link=lambda *_: 1.0))
    assert found is not None
    assert found.worker == slow
    assert found.reason.startswith(f"a matrix product of worker {slow} takes ")


@given(st.integers(3, 40), st.data(), st.floats(5.0, 100.0))
def test_worker_behind_slow_links_is_named(workers: int, data: st.DataObject, factor: float) -> None:
    slow = data.draw(st.integers(0, workers - 1))
    link = lambda *ends: data.draw(NOISE) * (factor if slow in ends else 1)  # noqa: E731
    found = verdict(group(workers, 7, product=lambda _: 1.0, link=link))
    assert found is not None
    assert found.worker == slow
    assert found.reason.startswith(f"all links of worker {slow} are slow")


@given(st.integers(3, 40), st.data(), st.floats(5.0, 100.0))
def test_one_end_of_a_slow_link_is_named(workers: int, data: st.DataObject, factor: float) -> None:
    measured = rounds(workers, 7)
    slow = data.draw(st.sampled_from([pair for pairs in measured for pair in pairs]))
    link = lambda *ends: data.draw(NOISE) * (factor if ends == slow else 1)  # noqa: E731
    found = verdict(group(workers, 7, product=lambda _: 1.0, link=link))
    assert found is not None
    assert found.worker == slow.second
    assert f"between worker {slow.first} and worker {slow.second} is slow" in found.reason


def test_nodes_of_different_kinds_are_no_fault() -> None:
    half = lambda each: 1.0 if each % 2 else 9.0  # noqa: E731
    assert verdict(group(8, 7, product=half, link=lambda *_: 1.0, gpu=True)) is None
    racks = lambda first, second: 1.0 if first // 4 == second // 4 else 9.0  # noqa: E731
    assert verdict(group(8, 7, product=lambda _: 1.0, link=racks)) is None


def test_link_of_two_workers_cannot_be_judged() -> None:
    assert verdict(group(2, 7, product=lambda _: 1.0, link=lambda *_: 1000.0)) is None


def test_slow_gpu_within_one_worker_is_named() -> None:
    ranks = [Measured(0, 0.001, {}, is_gpu=True) for _ in range(7)]
    found = verdict([*ranks, Measured(0, 0.002, {}, is_gpu=True)])
    reason = "a matrix product of worker 0 takes 2 ms, 2.0 times as long as usual in this group (1 ms)"
    assert found == Verdict(0, reason)


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        pytest.param([(1, 3, 0), (3, 1, 0)], 3, id="a link: the later end"),
        pytest.param([(1, 0, 0), (0, 1, 0)], 1, id="never worker 0, at which all meet"),
        pytest.param([(2, 1, 1), (3, 1, 0), (1, 3, 0), (2, 3, 2)], 3, id="what follows is a consequence"),
        pytest.param([(2, 1, 0)], 2, id="one side alone noticed it"),
    ],
)
def test_first_lost_link_decides(lost: list[tuple[int, int, int]], named: int) -> None:
    healthy = [Measured(each, 1.0, {}) for each in range(4)]
    losers = [Measured(worker, 1.0, {}, lost=other, lost_round=number) for worker, other, number in lost]
    found = verdict([*healthy, *losers])
    assert found is not None
    assert found.worker == named
    assert "cannot exchange data" in found.reason


def test_worker_that_several_lost_is_named() -> None:
    losers = [Measured(each, 1.0, {}, lost=1, lost_round=0) for each in (2, 3)]
    found = verdict(losers)
    assert found == Verdict(1, "worker 1 and worker 2, 3 cannot exchange data")


def test_places_become_indexes() -> None:
    measured = [(0, Measured(0, 1.0, {1: 2.0})), (5, Measured(1, 1.0, {0: 2.0}, lost=2)), (3, Measured(2, 1.0, {}))]
    assert by_index(measured) == [
        Measured(0, 1.0, {5: 2.0}),
        Measured(5, 1.0, {0: 2.0}, lost=3),
        Measured(3, 1.0, {}),
    ]


def test_pairs_name_the_lower_number_first() -> None:
    assert rounds(3, 1) == [[Pair(1, 2)]]
