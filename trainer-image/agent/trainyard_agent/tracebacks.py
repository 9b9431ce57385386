"""Find the traceback that ended a Python program in what it printed. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from signal import Signals
from typing import NamedTuple

BEGIN = "Traceback (most recent call last):"
OF_A_GROUP = "+ Exception Group "
"""Precedes it for an ExceptionGroup, whose lines all have a margin."""
ORIGINAL = "Original "
"""Precedes the traceback of a DataLoader's worker, which is a part of the message of the one above it."""
CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
ASIDE = re.compile(
    r"Exception ignored |Exception in thread |Error in (atexit\.|sys\.)|Task exception was never retrieved|future: <"
)
"""How the line before a traceback starts that ends no program: of a finalizer, a thread, an exit handler, a task."""
LOG_LINE = re.compile(r"\S{1,256}:\d{1,9}: \w{0,80}Warning: |(\[rank\d+\]:)?\[?[WEIF](\d{4} |\])")
"""Warnings of Python, and what torch and its launcher log: no part of an exception's text."""
THROWN = re.compile(
    r"^terminate called after throwing an instance of '([^'\n]+)'(?:\n\s*what\(\): *(.*))?", re.MULTILINE
)
"""What C++ prints for an exception that nothing has caught."""
CRASHES = frozenset({Signals.SIGABRT, Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGFPE, Signals.SIGILL})
"""Signals that kill a faulty program, also while it exits after an exception."""
LINES_AFTER_CRASH = 8
"""Lines that a program which crashes at exit prints after its traceback, at most."""
FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d{1,9}), in ([^\n]{1,80})$', re.MULTILINE)
SYNTAX = re.compile(
    r'^ *File "([^"\n]+)", line (\d{1,9})\n(?:[^\n]*\n){0,3}?((?:SyntaxError|IndentationError|TabError): [^\n]*)',
    re.MULTILINE,
)
"""What Python prints for a script that it cannot compile: there is no frame yet, and no traceback."""
FRAMES = 3
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen |/run/trainyard/|/sitecustomize\.py$")
"""In the path of a file that is not the user's."""
MAX_LINES, MAX_CHARACTERS = 16, 1024
"""After the exception's own line, in which its text may go on: missing keys, details of NCCL, notes."""


class Traceback(NamedTuple):
    """A traceback with those that led to it: the first of a chain is the original error."""

    text: str
    exception: str
    """The line that names it."""
    after: int
    """How many lines were printed after it."""


class _Block(NamedTuple):
    start: int
    end: int
    """Behind its last line."""
    exception: str
    chained: bool
    """Whether the block before led to it."""
    aside: bool


def last(text: str) -> Traceback | None:
    """Return the last traceback in the text that may have ended the program, if there is any."""
    lines = text.splitlines()
    chains: list[list[_Block]] = []
    for block in _blocks(lines):
        if block.chained and chains:
            chains[-1].append(block)
        else:
            chains.append([block])
    if not chains:
        return None
    chain = next((chain for chain in reversed(chains) if not chain[0].aside), chains[-1])
    start, end = chain[0].start, chain[-1].end
    return Traceback("\n".join(lines[start:end]).rstrip(), chain[-1].exception, len(lines) - end)


def _blocks(lines: Sequence[str]) -> list[_Block]:
    blocks: list[_Block] = []
    for number, line in enumerate(lines):
        if BEGIN in line and (not blocks or number >= blocks[-1].end):
            blocks.append(_block(lines, number))
    return blocks


def _block(lines: Sequence[str], start: int) -> _Block:
    """Return the traceback that starts at this line."""
    lead = lines[start].partition(BEGIN)[0]
    is_group = lead.endswith(OF_A_GROUP)
    # A prefix of each line, such as a log's time or a rank, precedes the frames too.
    margin = lead.removesuffix(OF_A_GROUP) + "| " if is_group else lead
    if not all(line.startswith(margin) for line in lines[start + 1 : start + 2]):
        margin = ""
    rest = [line.removeprefix(margin) for line in lines[start + 1 :]]
    frames = len([*takewhile(lambda line: line.startswith("  "), rest)])
    exception = rest[frames] if frames < len(rest) else ""
    if is_group:
        # All that belongs to it is indented, the tracebacks of its members too.
        more = len([*takewhile(lambda line: line.startswith("  "), lines[start + 1 + frames + 1 :])])
    else:
        more = _count_more(rest[frames + 1 :][:MAX_LINES])
    before = next((line.strip() for line in reversed(lines[:start]) if line.strip()), "")
    chained = lead == ORIGINAL or before.endswith(CHAINED)
    end = min(start + 1 + frames + 1 + more, len(lines))
    return _Block(start, end, exception.strip(), chained, bool(ASIDE.match(before)))


def _count_more(lines: Sequence[str]) -> int:
    """Return how many of the lines after an exception's may be a part of its text."""
    characters = 0
    for number, line in enumerate(lines):
        characters += len(line)
        if (
            characters > MAX_CHARACTERS
            or BEGIN in line
            or line.endswith(CHAINED)
            or ASIDE.match(line)
            or LOG_LINE.match(line)
        ):
            return number
    return len(lines)


def of_exit(code: int, output: str) -> tuple[str, str]:
    """Return the line of the exception that ended a process, and the text of its traceback; both empty where there is none.

    `code`: the exit code, 128 + n after signal n. `output`: the end of the standard error.
    """
    try:
        killed_by = Signals(code - 128)
    except ValueError:
        killed_by = None
    if killed_by and (thrown := [*THROWN.finditer(output)]):
        kind, what = thrown[-1].groups("")
        return f"{kind}: {what}".removesuffix(": "), output[thrown[-1].start() :].strip()
    found = last(output)
    if found is None and killed_by is None and (refused := [*SYNTAX.finditer(output)]):
        return refused[-1][3], refused[-1].group().strip("\n")
    # A process that a signal killed may have logged an exception long before.
    if found is None or (killed_by and (killed_by not in CRASHES or found.after > LINES_AFTER_CRASH)):
        return "", ""
    return found.exception, found.text


def location(traceback: str) -> str:
    """Return the innermost frames of a traceback: `data.py:57 in load < train.py:12 in main`. Empty where there is none.

    Of a chain of exceptions the last counts. Of a library's frames only the innermost is named: users change their own code.
    """
    if BEGIN not in traceback and (refused := SYNTAX.search(traceback)):
        return f"{refused[1].rpartition('/')[2]}:{refused[2]}"
    frames = [*reversed(FRAME.findall(traceback[max(0, traceback.rfind(BEGIN)) :]))]
    own = [frame for frame in frames if not LIBRARY.search(frame[0])] or frames
    shown = own if own[:1] == frames[:1] else [frames[0], *own]
    return " < ".join(f"{path.rpartition('/')[2]}:{line} in {name}" for path, line, name in shown[:FRAMES])
