"""Order workers so that neighbours in the order of ranks are near each other. Pure.

A place is a path in the tree of the network: block, rack, and the node last. Neighbours in the order communicate most. Tensor parallel ranks
follow each other directly; data parallel ranks form rings over all workers, in the order of their ranks.
"""

from collections.abc import Sequence
from itertools import pairwise

Place = tuple[str, ...]
"""The part of the network in which a worker runs, by level: the widest first, the node last. All workers have the same levels."""


def rank_order(places: Sequence[Place], unit: int = 1) -> list[int]:
    """Return the workers in the order of their ranks. `places`: that of each worker, by its index.

    `unit`: so many workers in a row form one tensor parallel group. Units are formed within a node where that is possible, else within a
    rack, and so on. Worker 0 stays first: all others meet at its address. Where nothing is better than the order of indexes, that is kept.
    """
    indexes = list(range(len(places)))
    if unit < 1 or len(places) % unit:
        unit = 1
    units, rest = _packed(places, indexes, unit, level=0)
    ordered = _worker_0_first(units) + rest
    return min((indexes, ordered), key=lambda order: costs(places, order, unit))


def costs(places: Sequence[Place], order: Sequence[int], unit: int = 1) -> tuple[int, ...]:
    """Return what an order costs, the most important number first: split units by level, and then crossings of data parallel rings."""
    levels = range(len(places[0]) if places else 0)
    units = [order[first : first + unit] for first in range(0, len(order), unit)]
    splits = (sum(len({places[worker][: level + 1] for worker in each}) > 1 for each in units) for level in levels)
    return (*splits, *(ring_crossings(places, order, unit, level) for level in levels))


def ring_crossings(places: Sequence[Place], order: Sequence[int], unit: int, level: int) -> int:
    """Return how often the data parallel rings leave a part of this level. There is one ring for each place within the units."""
    rings = ([places[worker][: level + 1] for worker in order[first::unit]] for first in range(unit))
    return sum(here != there for ring in rings if ring for here, there in pairwise([*ring, ring[0]]))


def _packed(
    places: Sequence[Place], workers: Sequence[int], unit: int, level: int
) -> tuple[list[list[int]], list[int]]:
    """Return the units of the workers in one part of the network, and the workers that are left for units of a wider part."""
    if not workers or level == len(places[workers[0]]):
        return _units(workers, unit)
    parts: dict[str, list[int]] = {}
    for worker in workers:
        parts.setdefault(places[worker][level], []).append(worker)
    units, left = list[list[int]](), list[int]()
    for part in parts.values():
        inner, rest = _packed(places, part, unit, level + 1)
        units += inner
        left += rest
    wider, rest = _units(left, unit)
    return units + wider, rest


def _units(workers: Sequence[int], unit: int) -> tuple[list[list[int]], list[int]]:
    whole = len(workers) // unit * unit
    return [list(workers[first : first + unit]) for first in range(0, whole, unit)], list(workers[whole:])


def _worker_0_first(units: Sequence[Sequence[int]]) -> list[int]:
    """Return the workers of these units in order, with worker 0 and its unit before all others."""
    first_inside = [sorted(unit, key=lambda worker: worker != 0) for unit in units]
    return [worker for unit in sorted(first_inside, key=lambda unit: unit[0] != 0) for worker in unit]
