"""Read the stacks that Python's faulthandler wrote in the ranks of a hung worker, and describe the hang. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from trainyard_agent.hang import Hang
from trainyard_agent.termination_message import Kind, Termination

MAIN_THREAD = re.compile(r"^Current thread 0x[^\n]*\(most recent call first\):\n((?:  [^\n]*\n?)+)", re.MULTILINE)
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$', re.MULTILINE)
CALLER = [("<string>", "run_program"), ("<string>", "<module>")]
"""The frames of `forkserver_child.py` that call the program in a forked rank: no part of the program."""
MIN_RANKS_FOR_OUTLIER = 3
BLOCKED_TEXTS = {
    "stopped": "(stopped by a signal)",
    "uninterruptible": "(blocked in the kernel: a disk, a file server, or the driver of a device)",
}


def frames(text: str) -> list[str]:
    """Return the frames of the main thread, the innermost first: `train.py:57 in load`. Empty where there are none."""
    found = MAIN_THREAD.findall(text)
    parts = FRAME.findall(found[-1]) if found else []
    if [(path, name) for path, _, name in parts[-2:]] == CALLER:
        parts = parts[:-2]
    return [f"{path.rpartition('/')[2]}:{line} in {name}" for path, line, name in parts]


def frames_by_rank(texts: Mapping[int, str]) -> dict[int, list[str]]:
    """Return the frames of each rank of which any are known. `texts`: what each rank wrote."""
    return {rank: found for rank, text in sorted(texts.items()) if (found := frames(text))}


def outlier(stacks: Mapping[int, Sequence[str]], blocked: Mapping[int, str]) -> int | None:
    """Return the only rank that is elsewhere than all others, which wait for it at one place.

    `blocked`: the ranks that cannot answer, with the reason. Such a rank needs no comparison.
    """
    if blocked:
        return next(iter(blocked)) if len(blocked) == 1 and stacks else None
    places = {rank: found[0] for rank, found in stacks.items() if found}
    counts = Counter(places.values())
    if len(places) < MIN_RANKS_FOR_OUTLIER or len(counts) != 2:
        return None
    alone = [rank for rank, place in places.items() if counts[place] == 1]
    return alone[0] if len(alone) == 1 else None


def describe_hang(
    hang: Hang, stacks: Mapping[int, Sequence[str]], blocked: Mapping[int, str], exit_code: int, note: str = ""
) -> tuple[Termination, str]:
    """Return the data of the termination message, and its text: where each rank is. `note`: a last line of the text."""
    odd = outlier(stacks, blocked)
    rank = hang.rank if odd is None else odd
    data = Termination(
        Kind.HUNG,
        rank=rank,
        exit_code=exit_code,
        step=hang.step,
        location=stacks[rank][0] if rank in stacks else "",
        phase=hang.phase,
        stalled_seconds=round(hang.seconds),
        usual_step_seconds=hang.usual,
        blocked=blocked.get(rank, ""),
        outlier=odd is not None,
    )
    where = {**{each: [BLOCKED_TEXTS[why]] for each, why in blocked.items()}, **stacks}
    lines = [f"rank {each}: {' < '.join(found)}" for each, found in sorted(where.items())]
    return data, "\n".join([*lines, note] if note else lines)
