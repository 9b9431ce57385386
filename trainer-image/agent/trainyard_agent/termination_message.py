"""Write the termination message of a worker: one JSON line for the operator, then free text for people. Pure.

The operator decides from the line alone (`trainyard/domain/state/termination.py`). Both sides are tested against the examples in
`tests/golden/termination_messages.json`. The line comes first and is short. The kubelet cuts a message at 4,096 bytes,
and in a pod of many containers at 12 KiB divided by their number.
"""

from __future__ import annotations

import json
from enum import Enum
from signal import Signals
from typing import NamedTuple, Optional

from trainyard_agent import tracebacks
from trainyard_agent.exit_cause import hardware_error, is_peer_loss, nccl_warnings, watchdog_error
from trainyard_agent.failure_cause import failure_cause
from trainyard_agent.memory import Memory

VERSION = 1
"""Of the schema. The operator takes a line of another version for text."""
MESSAGE_BYTES = 4096
"""The kubelet cuts a termination message there."""
LINE_BYTES = 1024
EXCEPTION_CHARACTERS, LOCATION_CHARACTERS = 512, 240
MAX_RANK = 999_999_999
MAX_NUMBER = 2**53
SIGNAL_BASE = 128
"""The exit code of a process that signal n has killed is 128 + n, as in a shell."""


class Kind(Enum):
    """What ended the worker."""

    FAILED = "failed"
    """A rank, or the command that starts the ranks, exited with an error."""
    HIDDEN = "hidden"
    """A rank failed, and the command that had started it exited with code 0. Also the exit code of the container is 0."""
    HUNG = "hung"
    """A rank made no progress for too long."""
    SAVED = "saved"
    """The ranks stopped after an agreed step, or saved because they were asked to."""
    NOT_STARTED = "notStarted"
    """The command could not be started."""
    RESTARTING = "restarting"
    """The container exits so that its node restarts it."""
    ABANDONED = "abandoned"
    """The operator did not start the attempt in time."""
    MISCONFIGURED = "misconfigured"
    """The agent's arguments or environment are wrong."""
    AGENT_UNABLE = "agentUnable"
    """The agent cannot run in this image."""


class Termination(NamedTuple):
    """The data of a termination message. What is not known is left out of the line."""

    kind: Kind
    rank: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The global rank that is the cause; None for a command that starts the ranks itself."""
    exit_code: Optional[int] = None  # noqa: UP045 - Python 3.9
    signal: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The signal that killed the process, as far as its exit code tells."""
    step: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The last step that the rank completed."""
    exception: str = ""
    """The line that names the exception."""
    location: str = ""
    """Frames, the innermost first: `data.py:57 in load < train.py:12 in main`."""
    peer_lost: bool = False
    """Whether the rank exited because it lost another rank."""
    hardware_error: str = ""
    """The words in the rank's output that point to broken hardware."""
    oom_kills: int = 0
    """Processes of this container that the kernel killed because memory ran out, during this attempt."""
    oom_age_seconds: Optional[int] = None  # noqa: UP045 - Python 3.9
    """Seconds between the last of these kills and the exit of the rank."""
    memory_peak_bytes: Optional[int] = None  # noqa: UP045 - Python 3.9
    memory_limit_bytes: Optional[int] = None  # noqa: UP045 - Python 3.9
    phase: str = ""
    """Of a hang: the phase in which the rank makes no progress."""
    stalled_seconds: Optional[int] = None  # noqa: UP045 - Python 3.9
    usual_step_seconds: Optional[float] = None  # noqa: UP045 - Python 3.9
    blocked: str = ""
    """Of a hang: why the rank cannot say where it is : `stopped` or `uninterruptible`."""
    outlier: bool = False
    """Of a hang: whether all other ranks of this worker are at one other place."""
    cause: str = ""
    """What the exception comes from, by `failure_cause`; empty where it may come from outside of the program and its image."""


def failure(
    rank: int | None,
    code: int,
    output: str,
    before: Memory,
    after: Memory,
    step: int | None = None,
    oom_age: float = 0.0,
) -> tuple[Termination, str]:
    """Return the data and the free text for a rank, or a command (`rank` None), that exited with `code`.

    `output`: the end of its standard error. `before`, `after`: the memory counts at start and exit. `oom_age`: seconds since the
    kernel last killed a process for lack of memory.
    """
    exception, traceback = tracebacks.of_exit(code, output)
    text = traceback or output.strip()
    lost, broken = is_peer_loss(code, output), hardware_error(f"{text}\n{watchdog_error(output)}")
    warnings = nccl_warnings(output)
    if traceback and warnings and warnings not in traceback:
        # Last, since a long text loses its begin.
        text = f"{traceback}\n{warnings}"
    kills = max(0, (after.oom_kills or 0) - (before.oom_kills or 0)) if after.oom_kills is not None else 0
    data = Termination(
        Kind.FAILED,
        rank=rank,
        exit_code=code,
        signal=signal_of(code),
        step=step,
        exception=exception,
        location=tracebacks.location(traceback),
        cause="" if lost or broken or kills else failure_cause(exception, traceback, output),
        peer_lost=lost,
        hardware_error=broken,
        oom_kills=kills,
        oom_age_seconds=round(oom_age) if kills else None,
        memory_peak_bytes=after.peak if kills else None,
        memory_limit_bytes=after.limit if kills else None,
    )
    return data, text


def is_plain(data: Termination, text: str) -> bool:
    """Return whether the message says no more than the exit code does, so that the end of the log is the better message."""
    return not text and data._replace(step=None) == Termination(Kind.FAILED, exit_code=data.exit_code)


def write(data: Termination, text: str = "") -> str:
    """Return the message: the JSON line, then as much of the end of `text` as fits into 4,096 bytes."""
    head = line(data).encode()
    room = MESSAGE_BYTES - len(head) - 1
    tail = text.strip().encode(errors="replace")[-room:] if text.strip() else b""
    return b"\n".join(filter(None, (head, tail))).decode(errors="ignore").rstrip()


def line(data: Termination) -> str:
    """Return the JSON line, at most 1,024 bytes."""
    exception = one_line(data.exception)[:EXCEPTION_CHARACTERS]
    location = one_line(data.location)[:LOCATION_CHARACTERS]
    while True:
        made = json.dumps(_fields(data, exception, location), ensure_ascii=False, separators=(",", ":"))
        if len(made.encode()) <= LINE_BYTES:
            return made
        if exception:
            exception = exception[: len(exception) // 2]
        else:
            location = location[: len(location) // 2]


def summary(data: Termination) -> str:
    """Return the data as the facts of a log line: `kind=failed rank=3 exitCode=1`."""
    fields = _fields(
        data, one_line(data.exception)[:EXCEPTION_CHARACTERS], one_line(data.location)[:LOCATION_CHARACTERS]
    )
    del fields["trainyard"]
    return " ".join(
        f"{name}={value if isinstance(value, str) and ' ' not in value else json.dumps(value, ensure_ascii=False)}"
        for name, value in fields.items()
    )


def one_line(text: str) -> str:
    """Return the text with each run of white space as one space, and what cannot be printed as `?`."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def signal_of(code: int) -> int | None:
    """Return the number of the signal that an exit code stands for, if there is one."""
    try:
        return Signals(code - SIGNAL_BASE).value
    except ValueError:
        return None


def _fields(data: Termination, exception: str, location: str) -> dict[str, object]:
    """Return what the line holds: no field of which nothing is known, and no number that the operator would refuse."""
    rank_known = data.rank is not None and 0 <= data.rank <= MAX_RANK
    fields = {
        "rank": data.rank if rank_known else None,
        "exitCode": data.exit_code,
        "signal": data.signal,
        "step": data.step,
        "exception": exception or None,
        "location": location or None,
        "cause": data.cause or None,
        "peerLost": data.peer_lost or None,
        "hardwareError": data.hardware_error or None,
        "oomKills": data.oom_kills or None,
        "oomAgeSeconds": data.oom_age_seconds,
        "memoryPeakBytes": data.memory_peak_bytes,
        "memoryLimitBytes": data.memory_limit_bytes,
        "phase": data.phase or None,
        "stalledSeconds": data.stalled_seconds,
        "usualStepSeconds": data.usual_step_seconds and float(f"{data.usual_step_seconds:.4g}"),
        "blocked": data.blocked or None,
        "outlier": data.outlier or None,
    }
    known = {name: _bounded(value) for name, value in fields.items() if value is not None}
    return {"trainyard": VERSION, "kind": data.kind.value, **known}


def _bounded(value: object) -> object:
    """Return a number within the limit of the operator, and any other value as it is."""
    return min(value, MAX_NUMBER) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
