"""What a training program says of how far it is, and how the agent reads it. Says it to nobody where no agent listens."""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import os
from typing import NamedTuple, Optional

FILE = "TRAINYARD_PROGRESS_FILE"
"""The variable that names a rank's own file. Programs in other languages write a step, or such JSON, into it themselves."""
LONGEST = 256
"""Bytes of what is said."""
PHASES = ("start", "compile", "train", "evaluate", "checkpoint")


class Said(NamedTuple):
    """What a rank has said last."""

    step: Optional[int]  # noqa: UP045 - Python 3.9
    """The last step that it has done; None where it has told its phase alone."""
    phase: str


def progress(step: int | None = None, *, phase: str = "train") -> None:
    """Say that `step` is done and what comes next: `start`, `compile`, `train`, `evaluate` or `checkpoint`.

    To be called by each rank after each step, and where a phase begins that takes longer than steps do; a rank that only waits for others
    in their phase says the same as they. Costs some microseconds. Raises ValueError for what is no step or no phase. Where the file
    cannot be written training goes on, and this rank is not judged.
    """
    if phase not in PHASES:
        raise ValueError(f"phase must be one of {', '.join(PHASES)}, and is {phase!r}")
    done = None if step is None else operator.index(step)
    if done is not None and done < 0:
        raise ValueError(f"step must not be negative, and is {done}")
    if path := os.environ.get(FILE):
        with contextlib.suppress(OSError):
            _opened(path).write(done, phase)


def read(path: str) -> Said | None:
    """What the file of a rank says, or None where nothing was said yet. Raises ValueError for nonsense."""
    try:
        # Whatever a program has put there: to look at it must not take long.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(file, LONGEST + 1).strip()
    except OSError:
        return None
    finally:
        os.close(file)
    if not text:
        return None
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} bytes")
    try:
        said = json.loads(text)
    except RecursionError:
        raise ValueError("brackets within brackets") from None
    fields = said if isinstance(said, dict) else {"step": said}
    step, phase = fields.get("step"), fields.get("phase", "train")
    if not (step is None or (type(step) is int and step >= 0)):
        raise ValueError("step is no whole number from 0 on")
    if phase not in PHASES:
        raise ValueError(f"phase is none of {', '.join(PHASES)}")
    return Said(step, phase)


class _File:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._step: int | None = None

    def write(self, step: int | None, phase: str) -> None:
        self._step = self._step if step is None else step
        said = json.dumps({"step": self._step, "phase": phase}).encode()
        # In one write, and always as long: whoever reads it sees the one or the other.
        os.pwrite(self._file, said.ljust(LONGEST), 0)


_opened = functools.cache(_File)
