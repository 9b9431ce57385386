"""What a training program says of how far it is, and how the agent reads it. Says it to nobody where no agent listens."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import math
import operator
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Optional

FILE = "TRAINYARD_PROGRESS_FILE"
"""The variable that names a rank's own file. Programs in other languages write a step, or such JSON, into it themselves."""
FOLDER = "TRAINYARD_PROGRESS_FOLDER"
"""The variable that names the folder of all files of a worker, below a launcher, which gives each process its rank itself."""
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""The variables by which launchers do."""
STACK = ".stack"
"""The end of the name of the file, beside a rank's own, into which it writes where it stands."""
STACKS = getattr(signal, "SIGRTMAX", 64) - 2
"""The signal at which a program that tells its progress writes down where all its threads stand, and goes on."""
MOST = 2**53
"""The highest number of a step: the operator takes no higher one, since JSON is read with floats in many places."""
LONGEST = 1024
"""Bytes of what is said."""
KNOWN, REMEMBERED = 3, 31
"""After so many steps it is known how long one takes; so many are remembered."""
PHASES = ("start", "compile", "train", "evaluate", "checkpoint")
MEASURED = (
    "samples_per_second",
    "tokens_per_second",
    "mfu",
    "grad_norm",
    "communication_share",
    "data_share",
    "checkpoint_share",
    "memory_bytes",
    "checkpoint_step",
    "checkpoint_seconds",
)
"""What else may be said of a rank: numbers from 0 on. The last two are of the newest checkpoint that is stored: its step, and how long it took."""


class Said(NamedTuple):
    """What a rank has said last."""

    step: Optional[int]  # noqa: UP045 - Python 3.9
    """The last step that it has done; None where it has told its phase alone."""
    phase: str
    total: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The step at which it means to end."""
    loss: Optional[float] = None  # noqa: UP045 - Python 3.9
    pid: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The process that has said it, where the library was used."""
    own: Optional[float] = None  # noqa: UP045 - Python 3.9
    """Seconds of the last step in which it worked itself, and did not wait for others."""
    first: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The first step that this process has said, where the library was used."""
    seconds: Optional[float] = None  # noqa: UP045 - Python 3.9
    """That a step takes as a rule: the median over the last of them, where the library was used."""
    measured: Mapping[str, float] = {}
    """What else the program measures, by its names in `MEASURED`."""


def progress(
    step: int | None = None,
    *,
    phase: str = "train",
    total: int | None = None,
    loss: float | None = None,
    own_seconds: float | None = None,
    measured: Mapping[str, float] | None = None,
) -> None:
    """Say that `step` is done and what comes next: `start`, `compile`, `train`, `evaluate` or `checkpoint`.

    To be called by each rank after each step, and where a phase begins that takes longer than steps do; a rank that only waits for others
    in their phase says the same as they. `total` is the step at which training ends, `loss` that of this rank's last batch (a number, so
    no tensor on a GPU, which would be waited for); both are shown in the job's status, and what is left out stays as it was. `own_seconds`
    is how long this rank worked itself in the step that is done, without waiting for others: by it a slow one is told from those that
    wait for it. `measured` takes the place of what was measured before: numbers of this rank by the names in `MEASURED`, shares of the time
    between 0 and 1. A loss that is NaN or infinite is left out, and so are such numbers, those below 0 and a time that is not more than 0.
    Costs some microseconds. Raises ValueError for what is no step, no phase or no such name. Where the file cannot be written training goes
    on, and this rank is not judged.
    """
    if phase not in PHASES:
        raise ValueError(f"phase must be one of {', '.join(PHASES)}, and is {phase!r}")
    if unknown := sorted(set(measured or ()) - {*MEASURED}):
        raise ValueError(f"measured has {', '.join(map(repr, unknown))}, and may have {', '.join(MEASURED)}")
    done, end = count("step", step), count("total", total)
    if path := own_file():
        with contextlib.suppress(OSError):
            _opened(path).write(done, phase, end, _float(loss), _float(own_seconds), measured)


def own_file() -> str | None:
    """The path of this rank's file, if an agent listens and it is known which rank this is."""
    if (path := os.environ.get(FILE)) or not (folder := os.environ.get(FOLDER)):
        return path
    rank = next((number for name in RANKS if (number := os.environ.get(name))), "")
    return f"{folder}/{int(rank)}" if rank.isascii() and rank.isdecimal() and len(rank) < 10 else None


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def count(name: str, value: int | None) -> int | None:
    """The number that was meant. Raises ValueError where it is negative or beyond `MOST`, TypeError where it is none."""
    count = None if value is None else operator.index(value)
    if count is not None and not 0 <= count <= MOST:
        raise ValueError(f"{name} must be from 0 to {MOST}, and is {count}")
    return count


def read(path: str) -> Said | None:
    """What the file of a rank says, or None where nothing was said yet. Raises ValueError for nonsense."""
    text = _text(path)
    if not text:
        return None
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} bytes")
    return _sound(text)


def _sound(text: bytes) -> Said:
    """What such a file says. Raises ValueError for nonsense."""
    try:
        said = json.loads(text)
    except RecursionError:
        raise ValueError("brackets within brackets") from None
    fields = said if isinstance(said, dict) else {"step": said}
    step, phase, total, loss = fields.get("step"), fields.get("phase", "train"), fields.get("total"), fields.get("loss")
    pid, first, own, seconds = fields.get("pid"), fields.get("first"), fields.get("own"), fields.get("seconds")
    for name, count in (("step", step), ("total", total), ("pid", pid), ("first", first)):
        if not (count is None or (type(count) is int and 0 <= count <= MOST)):
            raise ValueError(f"{name} is no whole number from 0 to {MOST}")
    if phase not in PHASES:
        raise ValueError(f"phase is none of {', '.join(PHASES)}")
    for name, number in (("loss", loss), ("own", own)):
        if not (number is None or _is_number(number)):
            raise ValueError(f"{name} is no number")
    if not (seconds is None or (_is_number(seconds) and seconds >= 0)):
        raise ValueError("seconds is no number from 0 on")
    return Said(step, phase, total, loss, pid, own, first, seconds, _measured(fields.get("measured")))


def _is_number(number: object) -> bool:
    """One that a float can hold: those of JSON may be of any length."""
    return type(number) is float or (type(number) is int and abs(number) < 2**1023)


def _measured(said: object) -> Mapping[str, float]:
    """Those of a newer library are passed over."""
    if not (said is None or isinstance(said, dict)):
        raise ValueError("measured is no object")
    known = {name: said[name] for name in MEASURED if said and name in said}
    for name, number in known.items():
        if not (_is_number(number) and 0 <= number < math.inf):
            raise ValueError(f"measured.{name} is no number from 0 on")
    return known


def _text(path: str) -> bytes:
    """The begin of the file, a byte more than what is said may have; nothing where it is no file."""
    try:
        # Whatever a program has put there: to look at it must not take long.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, LONGEST + 1).strip()
    except OSError:
        return b""
    finally:
        os.close(file)


class _File:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._said: dict[str, object] = {"pid": os.getpid()}
        self._step: int | None = None
        self._begun: float | None = None
        """When the step that is under way began, if nothing else was done since."""
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._stack = os.open(path + STACK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        # Written by a handler in C, whatever the program is stuck in.
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            faulthandler.register(STACKS, file=self._stack, all_threads=True)

    def write(
        self,
        step: int | None,
        phase: str,
        total: int | None,
        loss: float | None,
        own: float | None,
        measured: Mapping[str, float] | None,
    ) -> None:
        self._time(step, phase)
        if not os.fstat(self._file).st_nlink:
            self._open_again()
        # A loss that has become NaN is no number any more: then there is none, and not the one from before.
        told = {"step": step, "phase": phase, "total": total, "loss": loss}
        self._said.update({name: value for name, value in told.items() if value is not None})
        if loss is not None and not math.isfinite(loss):
            del self._said["loss"]
        # Of this step alone.
        self._said.pop("own", None)
        if own is not None and 0 < own < math.inf:
            self._said["own"] = own
        if measured is not None:
            numbers = {name: float(number) for name, number in measured.items()}
            self._said["measured"] = {name: number for name, number in numbers.items() if 0 <= number < math.inf}
        said = json.dumps(self._said).encode()
        # In one write, and always as long: whoever reads it sees the one or the other.
        os.pwrite(self._file, said.ljust(LONGEST), 0)

    def _open_again(self) -> None:
        """Somebody has removed the files, and who reads them looks for new ones. The descriptors stay: the handler in C knows the one."""
        for file, path in ((self._stack, self._path + STACK), (self._file, self._path)):
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.dup2(made, file, inheritable=False)
            os.close(made)

    def _time(self, step: int | None, phase: str) -> None:
        """How long steps take, which nobody who only reads the file now and then can tell."""
        done = self._step if step is None else step
        if (done, phase) == (self._step, self._said.get("phase")):
            return
        now = time.monotonic()
        if done is not None and self._step is not None and done > self._step and self._begun is not None:
            self._took.append((now - self._begun) / (done - self._step))
            if len(self._took) >= KNOWN:
                self._said["seconds"] = round(sorted(self._took)[len(self._took) // 2], 6)
        if done is not None:
            self._said.setdefault("first", done)
        self._step, self._begun = done, now if phase == "train" else None


_opened = functools.cache(_File)
