"""What Python's faulthandler has written of the ranks of a worker that hangs, and what is odd about it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from trainyard_agent.hang import Hang
from trainyard_agent.words import cut

MAIN_THREAD = re.compile(r"^Current thread 0x[^\n]*\(most recent call first\):\n((?:  [^\n]*\n?)+)", re.MULTILINE)
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$', re.MULTILINE)
CALLER = [("<string>", "run_the_program"), ("<string>", "<module>")]
"""What calls a program in a rank that was forked (`warmed.py`): no part of it."""
SEVERAL = 3
"""Of so many ranks one can be the odd one out."""


def stack(said: str) -> list[str]:
    """The frames of the main thread, the innermost first: `train.py:57 in load`. Empty where none were written."""
    found = MAIN_THREAD.findall(said)
    frames = FRAME.findall(found[-1]) if found else []
    if [(path, name) for path, _, name in frames[-2:]] == CALLER:
        frames = frames[:-2]
    return [f"{path.rpartition('/')[2]}:{line} in {name}" for path, line, name in frames]


def by_rank(said: Mapping[int, str]) -> dict[int, list[str]]:
    """The frames of each rank of which any are known. `said`: what each has written."""
    return {rank: frames for rank, words in sorted(said.items()) if (frames := stack(words))}


def odd_one_out(stacks: Mapping[int, Sequence[str]]) -> int | None:
    """The only rank that stands elsewhere than all others, which wait for it at one place."""
    places = {rank: frames[0] for rank, frames in stacks.items() if frames}
    # Those that do not answer need no comparison.
    if silent := [rank for rank, place in places.items() if place.startswith("(")]:
        return silent[0] if len(silent) == 1 < len(places) else None
    counts = Counter(places.values())
    if len(places) < SEVERAL or len(counts) != 2:
        return None
    alone = [rank for rank, place in places.items() if counts[place] == 1]
    return alone[0] if len(alone) == 1 else None


def message(hang: Hang, stacks: Mapping[int, Sequence[str]], kept: str = "") -> str:
    """Why the worker ended, and where each of its ranks stood: `stacks` as `by_rank` gives them. `kept`: what else there is to look at."""
    odd = odd_one_out(stacks)
    rank = hang.rank if odd is None else odd
    after = "" if hang.step is None else f" after step {hang.step}"
    during = "" if hang.phase == "train" else f", in phase {hang.phase}"
    usual = "" if hang.usual is None or during else f" (a step takes {hang.usual:.1f} seconds as a rule)"
    where = f"; it stands at {stacks[rank][0]}" if rank in stacks else ""
    others = "" if odd is None else ", all others elsewhere"
    told = f"rank {rank} hangs: no progress for {hang.seconds:.0f} seconds{after}{during}{usual}{where}{others}"
    lines = [f"rank {each}: {' < '.join(frames)}" for each, frames in stacks.items()]
    return cut(told, "\n".join([*lines, kept] if kept else lines), hang.step)
