"""What is kept of a rank's last words, and the message that tells why a worker ended. Pure."""

from __future__ import annotations

import re
from signal import Signals

from trainyard_agent import tracebacks
from trainyard_agent.memory import Memory
from trainyard_agent.tracebacks import BEGIN

KEPT = 32 * 1024
"""Bytes of each rank's standard error that are kept."""
LONGEST = 4096
"""Bytes; the kubelet cuts a termination message there."""
LONGEST_LINE = 256
FAILED_RANK = re.compile(r"^\[rank(\d+)\]: (  \+ Exception Group )?Traceback", re.MULTILINE)
"""How torch begins the traceback of a rank that ends with an exception."""
THROWN = re.compile(
    r"^terminate called after throwing an instance of '([^'\n]+)'(?:\n\s*what\(\): *(.*))?", re.MULTILINE
)
"""How C++ tells of an exception that nobody has caught."""
NEWS_OF_OTHERS = ("ChildFailedError", "subprocess.CalledProcessError")
"""A launcher's own exceptions: that a rank failed, not why."""
PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection was likely closed",
    "Broken pipe",
    "remote process exited",
    "DistBackendError",
    "RendezvousClosedError",
    "RendezvousConnectionError",
)
"""What gloo, NCCL and the store say in a rank that lost another one: the operator knows the same marks (`domain/cause.py`)."""
PEER_LOST_CODE = 92
SIGNALLED = 128
CRASHES = frozenset({Signals.SIGABRT, Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGFPE, Signals.SIGILL})
"""Signals by which a program ends that does something wrong, at its end after an exception too."""
AT_THE_END = 8
"""Lines that are said after the traceback of a program that crashes as it ends, at most."""
LATELY_SECONDS = 30.0
"""Who ends so long after a process was killed for want of memory does so because of that, as a rule: a loader that has lost a worker, say."""
MIB = 1 << 20


class Tail:
    """The end of a stream of bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """More was said."""
        self._bytes += data
        if len(self._bytes) > 2 * KEPT:
            del self._bytes[:-KEPT]

    @property
    def text(self) -> str:
        """What is kept."""
        return self._bytes[-KEPT:].decode(errors="replace")


def of_ranks(said: str) -> str:
    """What the ranks of a launcher have said, without its own last words; of several that failed, the first."""
    if first := FAILED_RANK.search(said):
        mark = f"[rank{first[1]}]: "
        lines = said[first.start() :].splitlines()
        return "\n".join(line[len(mark) :] for line in lines if line.startswith(mark))
    before, found, last = said.rpartition(BEGIN)
    while found and any(name in last for name in NEWS_OF_OTHERS):
        said = before
        before, found, last = said.rpartition(BEGIN)
    return said


def of_rank(said: str) -> str:
    """What a rank has said, without the marks that torch puts before each line of its traceback."""
    return of_ranks(said) if FAILED_RANK.search(said) else said


def how(code: int) -> str:
    """The end of a process in words."""
    killed_by = _signal(code)
    return f"was killed by {killed_by.name}" if killed_by else f"ended with exit code {code}"


def lost_a_peer(code: int, said: str) -> bool:
    """Whether a rank has ended because another one did, by its exit code, the exception that ended it or its last line."""
    said = of_rank(said)
    told = _exception(code, said)[0] or said.strip().rpartition("\n")[2]
    return code == PEER_LOST_CODE or any(mark in told for mark in PEER_LOST)


def message(
    who: str, code: int, said: str, before: Memory, after: Memory, step: int | None = None, ago: float = 0.0
) -> str:
    """Why the worker ended: a sentence that begins with `who`, the last step, the traceback or the last lines. At most 4,096 bytes.

    `ago`: seconds since the kernel has last killed something for want of memory, if it has.
    """
    exception, found = _exception(code, said)
    told = f"{who} {how(code)}"
    killed = _killed(before, after)
    if killed and ago <= LATELY_SECONDS:
        told += f": out of memory: the kernel killed {killed}"
    elif code == SIGNALLED + Signals.SIGBUS:
        told += (
            ": memory that it had mapped is not there; as a rule /dev/shm is full, or a file was cut off that it read"
        )
    elif exception:
        told += f": {exception}"
    elif not _signal(code) and (last := said.strip().rpartition("\n")[2].strip()):
        told += f": {last[:LONGEST_LINE]}"
    if killed and ago > LATELY_SECONDS:
        told += f" ({ago:.0f} seconds before, out of memory, the kernel had killed {killed})"
    return cut(told, found or said.strip(), step)


def cut(told: str, rest: str, step: int | None = None) -> str:
    """A sentence, then the last step, in a line that the operator reads, then as far as there is room the end of the rest.

    In a pod of many containers the kubelet leaves less of it: 12 KiB by their number, from the begin.
    """
    head = told.encode(errors="replace")[: LONGEST // 2] + (b"\n" if step is None else b'\n{"step": %d}\n' % step)
    tail = rest.encode(errors="replace")[-(LONGEST - len(head)) :] if rest else b""
    return (head + tail).decode(errors="ignore").rstrip()


def _killed(before: Memory, after: Memory) -> str:
    if after.oom_kills is None or after.oom_kills <= (before.oom_kills or 0):
        return ""
    peak = f", {after.peak // MIB} MiB were in use at most" if after.peak is not None else ""
    limit = f"; the limit is {after.limit // MIB} MiB" if after.limit is not None else ""
    return f"{after.oom_kills - (before.oom_kills or 0)} of its processes{peak}{limit}"


def _signal(code: int) -> Signals | None:
    """That has ended a process with this exit code."""
    try:
        return Signals(code - SIGNALLED)
    except ValueError:
        return None


def _exception(code: int, said: str) -> tuple[str, str]:
    """What was raised and has ended the rank, as far as that can be told, and the text that tells of it."""
    killed_by = _signal(code)
    if killed_by and (thrown := [*THROWN.finditer(said)]):
        kind, what = thrown[-1].groups("")
        return f"{kind}: {what}".removesuffix(": "), said[thrown[-1].start() :].strip()
    found = tracebacks.last(said)
    # Who was killed may have logged an exception long ago.
    if found is None or (killed_by and (killed_by not in CRASHES or found.after > AT_THE_END)):
        return "", ""
    return found.exception, found.text
