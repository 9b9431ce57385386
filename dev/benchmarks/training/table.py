"""The rows as text, and what they fall short of. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from dev.benchmarks.training.figures import OURS, LinkRow, LoopRow, RestoreRow, SaveRow

LEAST_BESIDE_PLAIN: Final = 0.99
MOST_STALL: Final = 0.01
PEERS: Final = ("accelerate", "fabric")


def loop_table(rows: Sequence[LoopRow], lines: Mapping[str, int]) -> str:
    """A block for each size and number of processes."""
    blocks = []
    for size, world in dict.fromkeys((row.size, row.world) for row in rows):
        head = [
            "system",
            "step ms",
            "samples/s",
            "x plain (least to most)",
            "us/step more",
            "CPU ms",
            "x plain (least to most)",
            "lines",
        ]
        body = [
            [
                row.system,
                f"{row.step_ms:.2f}",
                f"{row.samples_per_second:,.0f}",
                str(row.beside_plain),
                f"{row.overhead_us:+,.0f}",
                f"{row.cpu_ms:.2f}",
                str(row.cpu_beside_plain),
                str(lines.get(row.system, "-")),
            ]
            for row in rows
            if (row.size, row.world) == (size, world)
        ]
        blocks.append(f"{size} steps, {_processes(world)}\n{aligned([head, *body])}")
    return "\n\n".join(blocks)


def save_table(rows: Sequence[SaveRow], restored: Sequence[RestoreRow], size: int, interval: float) -> str:
    """One block for saving, one for taking up."""
    head = ["saved by", "stall ms", "of the time", "cost ms", "of the time", "CPU ms", "x ours (least to most)"]
    body = [
        [
            row.how,
            f"{row.stall_ms:.0f}",
            f"{row.stall_share:.2%}",
            f"{row.cost_ms:.0f}",
            f"{row.cost_share:.2%}",
            f"{row.cpu_ms:.0f}",
            str(row.beside_ours),
        ]
        for row in rows
    ]
    back = [["taken up by", "s", "x first (least to most)"]]
    back += [[row.how, f"{row.seconds:.3f}", str(row.beside_first)] for row in restored]
    title = f"checkpoints of {size / 1e6:.0f} MB, 2 processes, one in {interval:.0f} s (the default)"
    return f"{title}\n{aligned([head, *body])}\n\n{aligned(back)}"


def link_table(rows: Sequence[LinkRow]) -> str:
    """A block for each rate."""
    blocks = []
    for mbit in dict.fromkeys(row.mbit for row in rows):
        head = ["way", "kB/step", "s", "x DDP (least to most)", "loss", "s to DDP's loss"]
        body = [
            [
                row.way,
                f"{row.step_bytes / 1e3:,.0f}",
                f"{row.seconds:.2f}",
                str(row.beside_ddp),
                f"{row.loss:.4f}",
                "never" if row.reached is None else f"{row.reached:.2f}",
            ]
            for row in rows
            if row.mbit == mbit
        ]
        blocks.append(f"two islands of 2 processes, {mbit} Mbit/s between them\n{aligned([head, *body])}")
    return "\n\n".join(blocks)


def shortfalls(loops: Sequence[LoopRow], saves: Sequence[SaveRow]) -> list[str]:
    """Where our own figures are not what they should be, a sentence each."""
    found = []
    by_case = {(row.size, row.world, row.system): row for row in loops}
    for row in loops:
        if row.system != OURS:
            continue
        where = f"{row.size} steps, {_processes(row.world)}"
        beside = row.beside_plain.value
        if row.size == "usual" and beside < LEAST_BESIDE_PLAIN:
            found.append(f"{where}: {beside:.3f} of the plain loop's samples/s; it is to be {LEAST_BESIDE_PLAIN}")
        for name in PEERS:
            peer = by_case.get((row.size, row.world, name))
            if peer and beside <= peer.beside_plain.value:
                found.append(f"{where}: {beside:.3f} is not ahead of {name} with {peer.beside_plain.value:.3f}")
    return found + [
        f"checkpoints: the training stands still for {row.stall_share:.2%} of the time; it may for {MOST_STALL:.0%}"
        for row in saves
        if row.how == OURS and row.stall_share > MOST_STALL
    ]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """In columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  "
        + "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def _processes(world: int) -> str:
    return "one process" if world == 1 else f"{world} processes"
