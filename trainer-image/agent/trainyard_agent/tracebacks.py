"""Finds, in what a Python program has said, the traceback that ended it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

BEGIN = "Traceback (most recent call last):"
OF_A_GROUP = "+ Exception Group "
"""Stands before it for an ExceptionGroup, whose lines all have a margin."""
ORIGINAL = "Original "
"""Before the traceback of a worker of a DataLoader, which is a part of the message of the one above it."""
CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
ASIDE = re.compile(
    r"Exception ignored |Exception in thread |Error in (atexit\.|sys\.)|Task exception was never retrieved|future: <"
)
"""How the line before a traceback begins that ends no program: of an object that goes, a thread, a function that runs at exit, a task."""
OTHERS = re.compile(r"\S+:\d+: \w*Warning: |(\[rank\d+\]:)?\[?[WEIF](\d{4} |\])")
"""Warnings of Python, and what torch and its launcher log: not a part of an exception's words."""
MOST_LINES, MOST_LETTERS = 16, 1024
"""After the exception's own line, in which it may go on: the keys that do not fit, what NCCL knows, notes."""


class Traceback(NamedTuple):
    """With those that led to it: the first of a chain is the error that began it."""

    text: str
    exception: str
    """The line that names it."""
    after: int
    """How many lines were said after it."""


class _Block(NamedTuple):
    begin: int
    end: int
    """Behind its last line."""
    exception: str
    chained: bool
    """Whether the one before led to it."""
    aside: bool


def last(text: str) -> Traceback | None:
    """The last in the text that may have ended the program, if there is any."""
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
    begin, end = chain[0].begin, chain[-1].end
    return Traceback("\n".join(lines[begin:end]).rstrip(), chain[-1].exception, len(lines) - end)


def _blocks(lines: Sequence[str]) -> list[_Block]:
    blocks: list[_Block] = []
    for number, line in enumerate(lines):
        if BEGIN in line and (not blocks or number >= blocks[-1].end):
            blocks.append(_block(lines, number))
    return blocks


def _block(lines: Sequence[str], begin: int) -> _Block:
    """The traceback that begins there."""
    lead = lines[begin].partition(BEGIN)[0]
    is_group = lead.endswith(OF_A_GROUP)
    # What others put before each line, a log's time or a rank, stands before its frames too.
    margin = lead.removesuffix(OF_A_GROUP) + "| " if is_group else lead
    if not all(line.startswith(margin) for line in lines[begin + 1 : begin + 2]):
        margin = ""
    rest = [line.removeprefix(margin) for line in lines[begin + 1 :]]
    frames = len([*takewhile(lambda line: line.startswith("  "), rest)])
    exception = rest[frames] if frames < len(rest) else ""
    if is_group:
        # All that belongs to it is indented, the tracebacks of its members too.
        more = len([*takewhile(lambda line: line.startswith("  "), lines[begin + 1 + frames + 1 :])])
    else:
        more = _more(rest[frames + 1 :][:MOST_LINES])
    before = next((line.strip() for line in reversed(lines[:begin]) if line.strip()), "")
    chained = lead == ORIGINAL or before.endswith(CHAINED)
    end = min(begin + 1 + frames + 1 + more, len(lines))
    return _Block(begin, end, exception.strip(), chained, bool(ASIDE.match(before)))


def _more(lines: Sequence[str]) -> int:
    """How many of the lines after an exception's may be a part of its words."""
    letters = 0
    for number, line in enumerate(lines):
        letters += len(line)
        if letters > MOST_LETTERS or BEGIN in line or line.endswith(CHAINED) or ASIDE.match(line) or OTHERS.match(line):
            return number
    return len(lines)
