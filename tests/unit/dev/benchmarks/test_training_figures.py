import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.training.figures import NOTHING, links, loops, reached, restores, saves
from dev.benchmarks.training.lines import counted
from dev.benchmarks.training.link import burst
from dev.benchmarks.training.loop import Mark, cpu, measure
from dev.benchmarks.training.ratios import ratio
from dev.benchmarks.training.table import link_table, loop_table, save_table, shortfalls


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("x = 1\ny = 2\n", 2),
        ('"""What it is.\n\nMore of it.\n"""\n\n\nx = 1\n', 1),
        ("# why\nx = 1  # what\n\n", 1),
        ("import a\nfrom b import (\n    c,\n    d,\n)\nx = c\n", 1),
        ('def f():\n    """What it does."""\n    return 1\n', 2),
        ("x = f(\n    # why\n    1,\n    2,\n)\n", 4),
        ('x = """a\n\nb"""\n', 3),
        ("def f():\n    import a\n    return a\n", 2),
        ("", 0),
    ],
    ids=["code", "docstring", "comments", "imports", "function", "call", "text", "inner import", "nothing"],
)
def test_lines_are_what_is_written_and_read(source: str, lines: int) -> None:
    assert counted(source) == lines


def test_ratio_of_medians_has_the_range_of_rounds() -> None:
    found = ratio([2.0, 2.0, 9.0], [1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == (1.0, 1.0, 3.0)
    assert str(found) == "1.000 (1.000 to 3.000)"


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [([1.0], [1.0, 2.0], "1 and 2"), ([], [], "0 and 0"), ([1.0], [0.0], "positive")],
    ids=["turns", "none", "zero"],
)
def test_no_ratio(one: list[float], other: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ratio(one, other)


class Program:
    """One that prints every ten steps: its first interval, cold, takes a second, each other as long as it is told."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.turns = seconds, 0
        self.going = False

    def go(self) -> None:
        assert not self.going
        self.going, self.turns = True, self.turns + 1
        self._lines = count()

    def pause(self) -> None:
        assert self.going
        self.going = False

    def line(self) -> Mark:
        assert self.going
        number = next(self._lines)
        # The line that ends the step in which it was stopped is late, which nobody is to see.
        return Mark(self.turns * 100 + number * self.seconds + 1, 10 * number, number * 2.0)


def test_systems_run_sequentially_in_alternating_order() -> None:
    programs: Any = {"plain": Program(0.5), "trainyard": Program(0.25)}
    found = [*measure(programs, "tiny", 2, repeats=2, segments=3)]
    assert [(turn.number, turn.system) for turn in found] == [
        (0, "plain"), (0, "trainyard"), (1, "trainyard"), (1, "plain"),
    ]  # fmt: skip
    assert found[0].step_seconds == pytest.approx([0.05] * 3)
    assert found[1].step_seconds == pytest.approx([0.025] * 3)
    assert found[1].cpu_seconds == pytest.approx([0.2] * 3)
    assert not any(program.going for program in programs.values())


def turn(system: str, number: int, *step_seconds: float, size: str = "usual") -> dict[str, Any]:
    cpu = [2 * seconds for seconds in step_seconds]
    return {
        "system": system,
        "size": size,
        "world": 2,
        "number": number,
        "step_seconds": step_seconds,
        "cpu_seconds": cpu,
    }


TURNS = [
    turn("plain", 0, 0.04, 0.04, 0.05),
    turn("trainyard", 0, 0.041),
    turn("fabric", 0, 0.0404),
    turn("trainyard", 1, 0.039),
    turn("plain", 1, 0.04),
    turn("fabric", 1, 0.0404),
    turn("accelerate", 0, 0.05),
]


def test_loops_are_compared_by_samples_per_second() -> None:
    by_system = {row.system: row for row in loops(TURNS)}
    plain, ours = by_system["plain"], by_system["trainyard"]
    assert (plain.step_ms, plain.samples_per_second, plain.overhead_us) == pytest.approx((40, 64 / 0.04, 0))
    assert (ours.beside_plain.low, ours.beside_plain.high) == pytest.approx((0.04 / 0.041, 0.04 / 0.039))
    assert by_system["accelerate"].beside_plain.value == pytest.approx(0.8), "one turn only: it was interrupted"
    assert by_system["accelerate"].overhead_us == pytest.approx(10_000)
    assert loop_table([by_system["trainyard"]], {"trainyard": 30}).splitlines() == [
        "usual steps, 2 processes",
        "  system     step ms  samples/s  x plain (least to most)  us/step more  CPU ms  x plain (least to most)  lines",
        "  trainyard    40.00      1,600   1.000 (0.976 to 1.026)            +0   80.00   1.000 (0.975 to 1.025)     30",
    ]


def test_what_falls_short_has_its_sentence() -> None:
    slow = [turn("plain", 0, 0.04), turn("trainyard", 0, 0.05), turn("accelerate", 0, 0.05), turn("fabric", 0, 0.06)]
    assert shortfalls(loops(slow), saves(SAVED, interval=10)) == [
        "usual steps, 2 processes: 0.800 of the plain loop's samples/s; it is to be 0.99",
        "usual steps, 2 processes: 0.800 is not ahead of accelerate with 0.800",
        "checkpoints: the training stands still for 2.00% of the time; it may for 1%",
    ]
    assert shortfalls(loops(TURNS), saves(SAVED, interval=100)) == []


SAVED = [
    {"how": how, "turn": number, "stall": stall, "seconds": 4 + more, "cpu": 8 + 2 * more}
    for number in (0, 1)
    for how, stall, more in ((NOTHING, 0.0, 0.0), ("trainyard", 0.2, 0.5), ("torch.save", 0.6, 0.6))
]


def test_checkpoint_cost_includes_stall_and_background_writes() -> None:
    ours, theirs = saves(SAVED, interval=40)
    assert (ours.how, ours.stall_ms, ours.stall_share, ours.cost_ms) == pytest.approx(("trainyard", 200, 0.005, 500))
    assert (theirs.cost_share, theirs.cpu_ms, theirs.beside_ours.value) == pytest.approx((0.015, 1200, 3))
    back = restores([{"how": "memory", "seconds": 0.1}, {"how": "disk", "seconds": 0.4}])
    assert back[1].beside_first.value == pytest.approx(4)
    assert "checkpoints of 100 MB, 2 processes, one in 40 s (the default)" in save_table([ours], back, 10**8, 40)


def gone(way: str, number: int, seconds: float, sent: int, *losses: float, mbit: int = 50) -> dict[str, Any]:
    curve = [[seconds * (place + 1) / len(losses), loss] for place, loss in enumerate(losses)]
    return {
        "way": way, "turn": number, "steps": 100, "seconds": seconds, "bytes": sent, "curve": curve, "mbit": mbit,
    }  # fmt: skip


def test_ways_stand_beside_ddp_of_the_same_turn() -> None:
    ddp, fast, never = links(
        [
            gone("DDP", 0, 10, 10**8, 2.0, 1.0),
            gone("bf16", 0, 5, 5 * 10**7, 1.01, 0.9),
            gone("DiLoCo", 0, 1, 10**6, 2.0, 1.5),
            gone("bf16", 1, 6, 5 * 10**7, 2.0, 1.1),
            gone("DiLoCo", 1, 1, 10**6, 1.9, 1.0),
            gone("DDP", 1, 12, 10**8, 2.0, 1.1),
        ]
    )
    assert (ddp.step_bytes, ddp.seconds, ddp.reached) == (10**6, 11, 11)
    assert (fast.beside_ddp.value, fast.reached) == pytest.approx((0.5, (2.5 + 6) / 2))
    assert never.reached is None, "in the first turn it was not"
    assert link_table([never]).splitlines()[-1].endswith("never")


def test_rate_without_ddp_baseline_is_omitted() -> None:
    assert links([gone("bf16", 0, 5, 10, 1.0)]) == []


def test_a_loss_is_reached_once() -> None:
    curve = [[1.0, 3.0], [2.0, 1.0], [3.0, 2.0], [4.0, 1.0]]
    assert reached(curve, 1.5) == 2
    assert reached(curve, 0.5) is None


@pytest.mark.parametrize(("mbit", "size"), [(10, 65536), (500, 250_000)], ids=["a packet", "a tick"])
def test_bucket_holds_a_packet_or_one_tick(mbit: int, size: int) -> None:
    assert burst(mbit) == size


def test_cpu_time_is_that_of_all_threads(tmp_path: Path) -> None:
    for thread, nanoseconds in ((7, 1_500_000_000), (8, 500_000_000)):
        (tmp_path / f"7/task/{thread}").mkdir(parents=True)
        (tmp_path / f"7/task/{thread}/schedstat").write_text(f"{nanoseconds} 12 3\n")
    assert cpu(7, tmp_path) == 2
    assert cpu(9, tmp_path) == 0, "it has ended"
    begin = cpu(os.getpid())
    while cpu(os.getpid()) == begin:
        pass
