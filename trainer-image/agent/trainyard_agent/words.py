"""What is kept of a rank's last words, and the message that tells why a worker ended. Pure."""

from __future__ import annotations

import re
from signal import Signals

from trainyard_agent.memory import Memory

KEPT = 32 * 1024
"""Bytes of each rank's standard error that are kept."""
LONGEST = 4096
"""Bytes; the kubelet cuts a termination message there."""
BEGIN = "Traceback (most recent call last):"
LONGEST_LINE = 256
CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
FAILED_RANK = re.compile(r"^\[rank(\d+)\]: Traceback", re.MULTILINE)
"""How torch begins the traceback of a rank that ends with an exception."""
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


def traceback(text: str) -> str:
    """The last traceback in the text, with those that led to it: the first of a chain is the error that began it."""
    *earlier, last = text.split(BEGIN)
    if not earlier:
        return ""
    parts = [last]
    while len(earlier) > 1 and earlier[-1].rstrip().endswith(CHAINED):
        parts.insert(0, earlier.pop())
    chain = BEGIN + BEGIN.join(parts)
    return "\n".join(_until_the_exception(chain.splitlines()))


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
    if code <= SIGNALLED:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {Signals(code - SIGNALLED).name}"
    except ValueError:
        return f"ended with exit code {code}"


def lost_a_peer(code: int, said: str) -> bool:
    """Whether a rank has ended because another one did, by its exit code or the end of its last traceback."""
    last = traceback(of_rank(said)).rpartition("\n")[2] or said.strip().rpartition("\n")[2]
    return code == PEER_LOST_CODE or any(mark in last for mark in PEER_LOST)


def message(who: str, code: int, said: str, before: Memory, after: Memory, step: int | None = None) -> str:
    """Why the worker ended: a sentence that begins with `who`, the last step, the traceback or the last lines. At most 4,096 bytes."""
    found = traceback(said)
    exception = found.splitlines()[-1] if found else ""
    told = f"{who} {how(code)}"
    if killed := _killed(before, after):
        told += f": {killed}"
    elif code == SIGNALLED + Signals.SIGBUS:
        told += (
            ": memory that it had mapped is not there; as a rule /dev/shm is full, or a file was cut off that it read"
        )
    elif exception:
        told += f": {exception}"
    elif code <= SIGNALLED and (last := said.strip().rpartition("\n")[2].strip()):
        told += f": {last[:LONGEST_LINE]}"
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
    return f"out of memory: the kernel killed {after.oom_kills - (before.oom_kills or 0)} of its processes{peak}{limit}"


def _until_the_exception(lines: list[str]) -> list[str]:
    """Without what was said after the traceback: its last line is the first that is not indented after its last frame."""
    last_frame: int | None = max((i for i, line in enumerate(lines) if line.startswith("  ")), default=None)
    return lines if last_frame is None else lines[: last_frame + 2]
