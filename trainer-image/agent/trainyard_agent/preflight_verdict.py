"""Compare what the workers of a group have measured before training, and name one that is far slower. Pure.

A worker is compared with the others of its group alone: how fast a node or a link should be need not be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import NamedTuple, Optional

SLOW_GPU, SLOW_CPU, SLOW_LINK = 1.5, 2.0, 3.0
"""How many times longer than usual in its group something takes that is too slow. CPUs and links are shared, and vary more."""
MOST_NAMED = 1 / 3
"""Where more of the workers differ, the group has nodes of different kinds, and none is broken."""


class Pair(NamedTuple):
    """Two workers, the lower number first."""

    first: int
    second: int


class Measured(NamedTuple):
    """What one rank has measured."""

    worker: int
    product_seconds: float
    """Of one matrix product, on average."""
    exchange_seconds: Mapping[int, float]
    """Of one exchange with a rank of another worker, by the number of that worker."""
    is_gpu: bool = False
    lost: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The worker whose rank did not answer, with which this rank stopped to measure."""
    lost_round: int = 0


class Verdict(NamedTuple):
    """The worker that has to leave its node, and why."""

    worker: int
    reason: str


def rounds(workers: int, most: int) -> list[list[Pair]]:
    """Return who exchanges data with whom, in each of at most so many rounds. No worker is in two pairs of a round.

    All pairs meet once in the end, as in a tournament: one place is fixed, and the others move around it.
    """
    places: list[int] = [*range(workers), *([-1] if workers % 2 else [])]
    made = []
    for _ in range(min(most, len(places) - 1)):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]))
        made.append([Pair(min(pair), max(pair)) for pair in facing if -1 not in pair])
        places = [places[0], places[-1], *places[1:-1]]
    return made


def by_index(measured: Sequence[tuple[int, Measured]]) -> list[Measured]:
    """Return what was measured with the indexes of workers in place of their places in the order of ranks, each beside its index."""
    index_of = {each.worker: index for index, each in measured}
    return [
        each._replace(
            worker=index,
            exchange_seconds={index_of[other]: took for other, took in each.exchange_seconds.items()},
            lost=None if each.lost is None else index_of[each.lost],
        )
        for index, each in measured
    ]


def verdict(measured: Sequence[Measured]) -> Verdict | None:
    """Return the worker that is too slow; None where there is none, or too many differ for one to be the fault."""
    return _lost(measured) or _slow_product(measured) or _slow_link(measured)


def _lost(measured: Sequence[Measured]) -> Verdict | None:
    """Return the worker that most ranks lost in the first round in which one was lost: what follows is a consequence."""
    losers = [each for each in measured if each.lost is not None]
    if not losers:
        return None
    first = min(each.lost_round for each in losers)
    pairs = {_pair(each.worker, each.lost) for each in losers if each.lost is not None and each.lost_round == first}
    named = _most_frequent(pairs)
    others = sorted({each for pair in pairs if named in pair for each in pair} - {named})
    return Verdict(named, f"worker {named} and worker {_listed(others)} cannot exchange data")


def _slow_product(measured: Sequence[Measured]) -> Verdict | None:
    usual = median_low([each.product_seconds for each in measured])
    limit = SLOW_GPU if all(each.is_gpu for each in measured) else SLOW_CPU
    slow = [each for each in measured if each.product_seconds > limit * usual]
    workers = {each.worker for each in measured}
    if not slow or not _is_few({each.worker for each in slow}, len(workers)):
        return None
    worst = max(slow, key=lambda each: each.product_seconds)
    return Verdict(
        worst.worker, f"a matrix product of worker {worst.worker} takes {_compared(worst.product_seconds, usual)}"
    )


def _slow_link(measured: Sequence[Measured]) -> Verdict | None:
    """Return the worker all of whose links are slow, else one end of the slowest link."""
    seconds: dict[Pair, float] = {}
    for each in measured:
        for other, took in each.exchange_seconds.items():
            pair = _pair(each.worker, other)
            seconds[pair] = max(took, seconds.get(pair, 0.0))
    workers = sorted({each for pair in seconds for each in pair})
    if not workers:
        return None
    links = {each: [pair for pair in seconds if each in pair] for each in workers}
    # A slow worker has slow links alone, and every other one has a link that is not its.
    usual = median_low([min(seconds[pair] for pair in links[each]) for each in workers])
    slow = {pair for pair, took in seconds.items() if took > SLOW_LINK * usual}
    if not slow:
        return None
    isolated = {each for each in workers if len(links[each]) > 1 and slow.issuperset(links[each])}
    if isolated:
        if not _is_few(isolated, len(workers)):
            return None
        worst = max(isolated, key=lambda each: min(seconds[pair] for pair in links[each]))
        best = min(seconds[pair] for pair in links[worst])
        return Verdict(
            worst, f"all links of worker {worst} are slow: an exchange of data takes {_compared(best, usual)} at best"
        )
    if len(slow) > 1 and len(slow) > len(seconds) * MOST_NAMED:
        return None
    named = _most_frequent(slow)
    worst_link = max((pair for pair in slow if named in pair), key=lambda pair: seconds[pair])
    between = f"worker {worst_link.first} and worker {worst_link.second}"
    return Verdict(
        named, f"the link between {between} is slow: an exchange of data takes {_compared(seconds[worst_link], usual)}"
    )


def _pair(one: int, other: int) -> Pair:
    return Pair(min(one, other), max(one, other))


def _most_frequent(pairs: set[Pair] | Sequence[Pair]) -> int:
    """Return the worker that is in most of the pairs; of several the last one, since all meet at worker 0."""
    ends = [each for pair in pairs for each in pair]
    return max(ends, key=lambda each: (ends.count(each), each))


def _is_few(named: set[int], workers: int) -> bool:
    """Return whether so few workers differ that the fault is theirs."""
    return len(named) == 1 or len(named) <= workers * MOST_NAMED


def _compared(seconds: float, usual: float) -> str:
    return (
        f"{1000 * seconds:.3g} ms, {seconds / usual:.1f} times as long as usual in this group ({1000 * usual:.3g} ms)"
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
