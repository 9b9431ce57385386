"""Divide workers into ranges of consecutive indexes, which the status stores in place of long lists. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby


def consecutive(workers: Iterable[int], kind: Callable[[int], object] = lambda _: None) -> Iterator[Sequence[int]]:
    """Yield the ranges of consecutive workers in ascending order. `kind`: workers of one range have the same."""
    # Within a range, an index and its place in the order grow together.
    ranges = groupby(enumerate(sorted(workers)), key=lambda each: (each[1] - each[0], kind(each[1])))
    return ([worker for _, worker in members] for _, members in ranges)
