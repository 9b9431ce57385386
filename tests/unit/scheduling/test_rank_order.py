"""The order of workers by their places, as a table and as laws."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from trainyard.scheduling.rank_order import Place, costs, rank_order, ring_crossings

NODE, RACK = -1, 0


def at(*names: str) -> list[Place]:
    """Return places by their names: the first letter is the rack, the whole the node."""
    return [(name[0], name) for name in names]


def named(places: list[Place], order: list[int]) -> list[str]:
    """Return the nodes in this order."""
    return [places[worker][NODE] for worker in order]


@pytest.mark.parametrize(
    ("nodes", "unit", "expected"),
    [
        pytest.param("a1 a1 b1 b1", 1, "a1 a1 b1 b1", id="the order of indexes is good already"),
        pytest.param("a1 b1 a1 b1", 1, "a1 a1 b1 b1", id="workers of a node follow each other"),
        pytest.param("b1 a1 b2 a2", 1, "b1 b2 a1 a2", id="racks follow each other, worker 0's first"),
        pytest.param("a1 a2 a1 b1 a2 b1", 1, "a1 a1 a2 a2 b1 b1", id="nodes of a rack follow each other"),
        pytest.param("a1 a1 a1 a2 a2 a3 a3 a3", 2, "a1 a1 a2 a2 a3 a3 a1 a3", id="a pair shares a node if it can"),
        pytest.param("a1 a2 a2 a3 a3 b1 b1 a3", 2, "a1 a3 a2 a2 a3 a3 b1 b1", id="worker 0 is alone on its node"),
        pytest.param("a1 b1 a2 b2 a3 b3 a4 b4", 4, "a1 a2 a3 a4 b1 b2 b3 b4", id="a unit of four in a rack"),
        pytest.param("a1 b1 a1 b1 a1 b1", 4, "a1 a1 a1 b1 b1 b1", id="a unit that does not divide the workers"),
        pytest.param("a1", 1, "a1", id="a single worker"),
        pytest.param("", 1, "", id="none"),
    ],
)
def test_order_by_placement(nodes: str, unit: int, expected: str) -> None:
    places = at(*nodes.split())
    assert named(places, rank_order(places, unit)) == expected.split()


def test_order_of_indexes_wins_a_tie() -> None:
    # The ring from the last worker to the first stays in the rack.
    assert rank_order(at("a1", "b1", "b2", "a2")) == [0, 1, 2, 3]
    assert rank_order(at("a1", "b1", "a2", "b2")) == [0, 2, 1, 3]


def test_unknown_places_keep_the_order() -> None:
    assert rank_order([("", f"node{number}") for number in range(5)]) == [0, 1, 2, 3, 4]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Place], int]:
    """Workers on nodes of racks of blocks, and the size of a unit that divides them."""
    unit = draw(st.integers(1, 4))
    size = unit * draw(st.integers(1, 8))
    numbers = draw(st.lists(st.integers(0, 11), min_size=size, max_size=size))
    return [(f"block{number // 6}", f"rack{number // 3}", f"node{number}") for number in numbers], unit


@given(groups())
@settings(max_examples=300)
def test_each_worker_has_one_place(group: tuple[list[Place], int]) -> None:
    places, unit = group
    order = rank_order(places, unit)
    assert sorted(order) == list(range(len(places)))
    assert order[0] == 0


@given(groups())
@settings(max_examples=300)
def test_units_share_a_part_wherever_possible(group: tuple[list[Place], int]) -> None:
    places, unit = group
    order = rank_order(places, unit)
    for level in range(3):
        parts = Counter(place[: level + 1] for place in places)
        possible = sum(number // unit for number in parts.values())
        whole = len(places) // unit - costs(places, order, unit)[level]
        assert whole == possible, f"at level {level}"


@given(groups())
@settings(max_examples=300)
def test_no_order_costs_more_than_indexes(group: tuple[list[Place], int]) -> None:
    places, unit = group
    order, before = rank_order(places, unit), list(range(len(places)))
    assert costs(places, order, unit) <= costs(places, before, unit)


@given(groups())
@settings(max_examples=300)
def test_ring_crosses_no_more_than_before(group: tuple[list[Place], int]) -> None:
    """Without units a ring enters each rack once, which is the least that is possible."""
    places, _ = group
    order, before = rank_order(places), list(range(len(places)))
    for level in range(3):
        parts = len({place[: level + 1] for place in places})
        crossings = ring_crossings(places, order, 1, level)
        assert crossings <= ring_crossings(places, before, 1, level)
        assert crossings == (parts if parts > 1 else 0)


@given(groups(), st.randoms(use_true_random=False))
def test_names_of_places_do_not_matter(group: tuple[list[Place], int], random: Random) -> None:
    places, unit = group
    names = sorted({name for place in places for name in place})
    others = dict(zip(names, random.sample(names, len(names)), strict=True))
    renamed = [tuple(others[name] for name in place) for place in places]
    assert rank_order(renamed, unit) == rank_order(places, unit)


def test_ten_thousand_workers_are_ordered() -> None:
    random = Random(1)  # noqa: S311 - a placement, no secret
    places: list[Place] = [(f"rack{number % 64}", f"node{number}") for number in random.sample(range(10_000), 10_000)]
    order = rank_order(places, 2)
    assert ring_crossings(places, order, 2, RACK) <= 4 * 64
