"""Report the progress of a training program to the agent, and read it there. Does nothing where no agent listens."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import operator
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, Optional

from trainyard_agent.report_file import LATEST, MAX_BYTES, ReportFile

FILE_VARIABLE = "TRAINYARD_PROGRESS_FILE"
"""The variable that names a rank's own file. Programs in other languages write a step, or such JSON, into it themselves."""
DIR_VARIABLE = "TRAINYARD_PROGRESS_DIR"
"""The variable that names the folder of all files of a worker, below a launcher, which gives each process its rank itself."""
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "HOROVOD_RANK", "SLURM_PROCID")
"""The variables by which launchers do."""
MAX_STEP = 2**53
"""The highest number of a step: the operator accepts no higher one, since JSON is read with floats in many places."""
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
    "gemm_seconds",
    "checkpoint_step",
    "checkpoint_seconds",
)
"""What else a rank may report: numbers from 0 on. The last two are of the newest stored checkpoint: its step, and how long it took."""


class RankState(NamedTuple):
    """What a rank has reported last."""

    step: Optional[int]  # noqa: UP045 - Python 3.9
    """The last step that it completed; None where it has reported its phase only."""
    phase: str
    total: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The step at which training ends."""
    loss: Optional[float] = None  # noqa: UP045 - Python 3.9
    pid: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The process that reported it, where the library was used."""
    compute_seconds: Optional[float] = None  # noqa: UP045 - Python 3.9
    """Of the last step: in which the rank worked itself, and did not wait for others."""
    first: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The first step that this process has reported, where the library was used."""
    seconds: Optional[float] = None  # noqa: UP045 - Python 3.9
    """That a step usually takes: the median over the last of them, where the library was used."""
    measured: Mapping[str, float] = {}
    """What else the program measures, by its names in `MEASURED`."""


def progress(
    step: int | None = None,
    *,
    phase: str = "train",
    total: int | None = None,
    loss: float | None = None,
    compute_seconds: float | None = None,
    measured: Mapping[str, float] | None = None,
) -> None:
    """Report that `step` is complete and what comes next: `start`, `compile`, `train`, `evaluate` or `checkpoint`.

    Each rank calls this after each step, and where a phase starts that takes longer than steps do. A rank that only waits for others
    in their phase reports the same phase. `total` is the step at which training ends. `loss` is that of this rank's
    last batch: a number, and no tensor on a GPU, for which the call would wait. Both are shown in the job's status, and
    what is left out stays as it was. `compute_seconds` is the compute time of this rank in the complete step, without
    waits for others. It distinguishes a straggler from the ranks that wait for it. `measured` replaces what was
    measured before: numbers of this rank by the names in `MEASURED`, shares of the time between 0 and 1. A loss that is
    NaN or infinite is left out. So are such numbers, those below 0, and a time that is not above 0. Costs some
    microseconds. Raises ValueError for what is no step, no phase or no such name. Where the file cannot be written
    training continues, and this rank is not judged.
    """
    if phase not in PHASES:
        raise ValueError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}")
    if measured and (unknown := sorted(set(measured) - {*MEASURED})):
        raise ValueError(f"measured has {', '.join(map(repr, unknown))}, and may have {', '.join(MEASURED)}")
    done, end = count("step", step), count("total", total)
    if path := own_file():
        with contextlib.suppress(OSError):
            _opened(path).write(done, phase, end, _float(loss), _float(compute_seconds), measured)


def phase() -> str | None:
    """Return the phase that this process reported last; None where it has reported nothing, or no agent listens."""
    path = own_file()
    # To open it would make the file, and the agent would know of a rank that has reported nothing.
    return _opened(path).phase if path and os.path.exists(path) else None  # noqa: PTH110 - pathlib takes its time to import


def own_file() -> str | None:
    """Return the path of this rank's file, if an agent listens and the rank is known."""
    if (path := os.environ.get(FILE_VARIABLE)) or not (folder := os.environ.get(DIR_VARIABLE)):
        return path
    rank = next((number for name in RANK_VARIABLES if (number := os.environ.get(name))), "")
    return f"{folder}/{int(rank)}" if rank.isascii() and rank.isdecimal() and len(rank) < 10 else None


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def count(name: str, value: int | None) -> int | None:
    """Return the integer. Raises ValueError where it is negative or beyond `MAX_STEP`, TypeError where it is none."""
    count = None if value is None else int(operator.index(value))
    if count is not None and not 0 <= count <= MAX_STEP:
        raise ValueError(f"{name} must be from 0 to {MAX_STEP}, got {count}")
    return count


def read(path: str) -> RankState | None:
    """Return what the file of a rank holds, or None where nothing was reported yet. Raises ValueError for what is malformed."""
    # One byte more than it may have.
    content = peek(path, lambda file: os.read(file, MAX_BYTES + LATEST.size + 1))
    has_latest = len(content) == MAX_BYTES + LATEST.size
    text = (content[:MAX_BYTES] if has_latest else content).strip()
    if not text:
        return None
    if len(text) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES} bytes")
    state = _parse(text)
    return _with_latest(state, *LATEST.unpack_from(content, MAX_BYTES)) if has_latest else state


def _with_latest(state: RankState, step: int, loss: float, compute_seconds: float) -> RankState:
    """Return the state of the latest step, which may be newer than the text."""
    if state.step is None or not state.step < step <= MAX_STEP:
        return state
    return state._replace(
        step=step,
        loss=loss if math.isfinite(loss) else None,
        compute_seconds=compute_seconds if 0 < compute_seconds < math.inf else None,
    )


def _parse(text: bytes) -> RankState:
    """Return what the text of such a file holds. Raises ValueError."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("brackets within brackets") from None
    fields = content if isinstance(content, dict) else {"step": content}
    step, phase, total, loss = fields.get("step"), fields.get("phase", "train"), fields.get("total"), fields.get("loss")
    pid, first, seconds = fields.get("pid"), fields.get("first"), fields.get("seconds")
    compute_seconds = fields.get("computeSeconds")
    for name, number in (("step", step), ("total", total), ("pid", pid), ("first", first)):
        if not (number is None or (type(number) is int and 0 <= number <= MAX_STEP)):
            raise ValueError(f"{name} is not an integer from 0 to {MAX_STEP}")
    if phase not in PHASES:
        raise ValueError(f"phase is none of {', '.join(PHASES)}")
    for name, number in (("loss", loss), ("computeSeconds", compute_seconds)):
        if not (number is None or _is_number(number)):
            raise ValueError(f"{name} is not a number")
    if not (seconds is None or (_is_number(seconds) and seconds >= 0)):
        raise ValueError("seconds is not a number from 0 on")
    measured = _parse_measured(fields.get("measured"))
    return RankState(step, phase, total, loss, pid, compute_seconds, first, seconds, measured)


def _is_number(number: object) -> bool:
    """Return whether a float can hold it: the numbers of JSON may be of any length."""
    return type(number) is float or (type(number) is int and abs(number) < 2**1023)


def _parse_measured(content: object) -> Mapping[str, float]:
    """Return the known measurements. Those of a newer library are ignored."""
    if not (content is None or isinstance(content, dict)):
        raise ValueError("measured is not an object")
    known = {name: content[name] for name in MEASURED if content and name in content}
    for name, number in known.items():
        if not (_is_number(number) and 0 <= number < math.inf):
            raise ValueError(f"measured.{name} is not a number from 0 on")
    return known


def peek(path: str, look: Callable[[int], bytes]) -> bytes:
    """Return what `look` reads from the descriptor of a file; nothing where it cannot be read."""
    try:
        # Whatever a program has put there: to look at it must not take long.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return look(file)
    except OSError:
        return b""
    finally:
        os.close(file)


_opened = functools.cache(ReportFile)
