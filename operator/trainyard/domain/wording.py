"""Compose and shorten sentences for people: counts, and the most telling line of a log. No decision depends on the text."""

import re

LONGEST = 512
EXCEPTION = re.compile(r"\b[A-Za-z_][\w.]{0,127}(Error|Exception|Interrupt|Exit)\b(:|$)")
"""The last line of a Python traceback."""
PREFIX = re.compile(r"^(\[(rank)?\d+\]:? ?|traceback +: )")
"""The prefix of torch and torchrun before each line of a rank, and before the cause in torchrun's summary."""
ADVICE = "To enable traceback see"
"""The text of torchrun where a rank left no error file: it does not describe the error."""
EXIT_CODE = re.compile(r"exitcode +: (-?\d+)")
NEWS_OF_NOTHING = "ChildFailedError"
"""The exception of torchrun itself: it reports that a rank failed, not why."""
FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d{1,9}), in ([^\n]{1,80})$', re.MULTILINE)
"""A frame of a Python traceback."""
VARYING = re.compile(r'\bpods "[^"]*"|(?P<name>"[^"]*")|\d+')
"""What may differ in two messages about one obstacle: the pod and numbers, but no number in the quoted name of an object."""
BEGIN = "Traceback (most recent call last)"
FRAMES, TRACED = 3, 4096
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen |/run/trainyard/|/sitecustomize\.py$")
"""Matches the paths of files that are not the user's."""


def counted(number: int, thing: str) -> str:
    """Return the number with its noun: `1 worker`, `3 workers`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def without_last_clause(sentence: str) -> str:
    """Return the sentence up to its last semicolon; all of it where there is none."""
    return sentence.rpartition("; ")[0] or sentence


def same_obstacle(obstacle: str, message: str) -> bool:
    """Return whether a stored message names this obstacle. Numbers may differ: counts, amounts, the index in a pod's name."""
    first, second = (VARYING.sub(lambda found: found["name"] or "0", text) for text in (obstacle, message))
    return first in second


def raised_at(message: str) -> str:
    """Return the innermost frames of a Python traceback, the last one first: `data.py:57 in load < train.py:12 in main`.

    Empty where there is no traceback. Of the frames of libraries, only the innermost is shown: the user cannot change them.
    """
    # Of chained exceptions, the last one.
    last = message[max(0, message.rfind(BEGIN)) :]
    frames = [*reversed(FRAME.findall(last[-TRACED:]))]
    own = [frame for frame in frames if not LIBRARY.search(frame[0])] or frames
    shown = own if own[:1] == frames[:1] else [frames[0], *own]
    return " < ".join(f"{path.rpartition('/')[2]}:{line} in {name}" for path, line, name in shown[:FRAMES])


def headline(message: str) -> str:
    """Return the most telling line of the end of a log: the last exception of a traceback, else the last line.

    After the exception, a launcher usually prints lines of its own.
    """
    lines = [PREFIX.sub("", line.strip()) for line in message.splitlines()]
    filled = [line for line in lines if any(letter.isalnum() for letter in line)]
    exceptions = [line for line in filled if EXCEPTION.search(line) and NEWS_OF_NOTHING not in line]
    last = next(reversed(exceptions or filled), "")
    if last.startswith(ADVICE) and (code := EXIT_CODE.search(message)):
        return f"a training process exited with code {code[1]}; see the log of the worker"
    return last[:LONGEST]
