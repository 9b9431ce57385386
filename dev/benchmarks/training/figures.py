"""Make the rows of the table from what the programs have measured. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from dev.benchmarks.training.ratios import Ratio, ratio
from dev.benchmarks.training.sizes import SIZES

Record = Mapping[str, Any]
"""What a program has said: its kind, and what it has of it."""
PLAIN: Final = "plain"
OURS: Final = "trainyard"
NOTHING: Final = "no checkpoint"
DDP: Final = "DDP"
NEAR: Final = 1.02
"""A loss is reached that is at most so many times as high."""


@dataclass(frozen=True, slots=True)
class LoopRow:
    """A loop.

    Attributes:
        step_ms: of a step; the median of all turns.
        samples_per_second: of all processes.
        beside_plain: samples per second, against the plain loop. Above 1: faster.
        overhead_us: of a step, beyond the plain loop's.
        cpu_ms: of all processes for a step.
        cpu_beside_plain: CPU time, against the plain loop. Below 1: less.
    """

    size: str
    world: int
    system: str
    step_ms: float
    samples_per_second: float
    beside_plain: Ratio
    overhead_us: float
    cpu_ms: float
    cpu_beside_plain: Ratio


@dataclass(frozen=True, slots=True)
class SaveRow:
    """A way to save.

    Attributes:
        stall_ms: that the training stands still.
        stall_share: of the time, at the library's default interval.
        cost_ms: what the training takes longer in all: standing still, and what is written beside it.
        cost_share: share of the time that saving costs.
        cpu_ms: that all processes work more for it, in the call and beside the training.
        beside_ours: the standstill, against the library's.
    """

    how: str
    stall_ms: float
    stall_share: float
    cost_ms: float
    cost_share: float
    cpu_ms: float
    beside_ours: Ratio


@dataclass(frozen=True, slots=True)
class RestoreRow:
    """A way to take a checkpoint up. `beside_first`: seconds, against the first row."""

    how: str
    seconds: float
    beside_first: Ratio


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A way to communicate.

    Attributes:
        mbit: of the link, in each direction.
        step_bytes: that go over it, to and fro.
        seconds: of all steps.
        beside_ddp: seconds, against DDP's.
        loss: in the end.
        reached: seconds until the loss is within 2 % of DDP's in the end; None: never.
    """

    mbit: int
    way: str
    step_bytes: float
    seconds: float
    beside_ddp: Ratio
    loss: float
    reached: float | None


def loops(turns: Sequence[Record]) -> list[LoopRow]:
    """Rows of `turn` records, in the order in which they came first."""
    found = _grouped(turns, "size", "world", "system")
    rows = []
    for (size, world, system), own in found.items():
        if (size, world, PLAIN) not in found:
            continue
        steps = [median(turn["step_seconds"]) for turn in own]
        plain = [median(turn["step_seconds"]) for turn in found[size, world, PLAIN]]
        step, beside = median(steps), ratio(plain[: len(steps)], steps[: len(plain)])
        rate = SIZES[size].share * world / step
        cpu = [median(turn["cpu_seconds"]) for turn in own]
        plain_cpu = [median(turn["cpu_seconds"]) for turn in found[size, world, PLAIN]]
        cpu_beside = ratio(cpu[: len(plain_cpu)], plain_cpu[: len(cpu)])
        more = 1e6 * (step - median(plain))
        rows.append(LoopRow(size, world, system, 1e3 * step, rate, beside, more, 1e3 * median(cpu), cpu_beside))
    return rows


def saves(saved: Sequence[Record], interval: float) -> list[SaveRow]:
    """Rows of `saved` records. `interval`: seconds from one checkpoint to the next, by the library's default."""
    found = _grouped(saved, "how")
    without = found[NOTHING,]
    ours = [turn["stall"] for turn in found[OURS,]]
    rows = []
    for (how,), own in found.items():
        if how == NOTHING:
            continue
        stalls = [turn["stall"] for turn in own]
        stall = median(stalls)
        cost, cpu = (
            median(turn[name] - base[name] for turn, base in zip(own, without, strict=True))
            for name in ("seconds", "cpu")
        )
        beside = ratio(stalls, ours)
        rows.append(SaveRow(how, 1e3 * stall, stall / interval, 1e3 * cost, cost / interval, 1e3 * cpu, beside))
    return rows


def restores(restored: Sequence[Record]) -> list[RestoreRow]:
    """Rows of `restored` records."""
    found = _grouped(restored, "how")
    first = [turn["seconds"] for turn in restored if turn["how"] == next(iter(found))[0]]
    rows = []
    for (how,), own in found.items():
        seconds = [turn["seconds"] for turn in own]
        rows.append(RestoreRow(how, median(seconds), ratio(seconds[: len(first)], first[: len(seconds)])))
    return rows


def links(exchanged: Sequence[Record]) -> list[LinkRow]:
    """Rows of `exchanged` records; those of a rate at which DDP was not measured are left out."""
    found = _grouped(exchanged, "mbit", "way")
    rows = []
    for (mbit, way), turns in found.items():
        # Where it was interrupted, one may be a turn ahead of the other.
        pairs = [*zip(turns, found.get((mbit, DDP), []), strict=False)]
        if not pairs:
            continue
        own, base = [turn for turn, _ in pairs], [turn for _, turn in pairs]
        seconds, ddp = [turn["seconds"] for turn in own], [turn["seconds"] for turn in base]
        goals = {turn["turn"]: NEAR * turn["curve"][-1][1] for turn in base}
        times = [reached(turn["curve"], goals[turn["turn"]]) for turn in own]
        all_times = [time for time in times if time is not None]
        rows.append(
            LinkRow(
                mbit,
                way,
                median(turn["bytes"] / turn["steps"] for turn in own),
                median(seconds),
                ratio(seconds, ddp),
                median(turn["curve"][-1][1] for turn in own),
                median(all_times) if len(all_times) == len(times) else None,
            )
        )
    return rows


def reached(curve: Sequence[Sequence[float]], goal: float) -> float | None:
    """The first time at which the loss is not above the goal, of pairs of time and loss."""
    return next((seconds for seconds, loss in curve if loss <= goal), None)


def _grouped(records: Sequence[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """By what they have under these names; each group in the order of its turns."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record[name] for name in names), []).append(record)
    return found
