"""Tell from the end of a rank's standard error what made it exit. Pure.

These marks are the only place where the meaning of a program's words is looked for: the operator gets the result as data.
"""

from __future__ import annotations

import re

from trainyard_agent import tracebacks
from trainyard_agent.tracebacks import BEGIN

KEPT = 32 * 1024
"""Bytes of each rank's standard error that are kept."""
FAILED_RANK = re.compile(r"^\[rank(\d+)\]: (  \+ Exception Group )?Traceback", re.MULTILINE)
"""How torch starts the traceback of a rank that exits with an exception."""
LAUNCHER_EXCEPTIONS = ("ChildFailedError", "subprocess.CalledProcessError")
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
"""What gloo, NCCL, the store and torchrun print in a rank that lost another rank."""
PEER_LOST_CODE = 92
HARDWARE_ERRORS = (
    "uncorrectable ECC",
    "fallen off the bus",
    "CUDA error: unknown error",
    "CUDA error: unspecified launch failure",
    "CUDA error: hardware",
    "NVRM: Xid",
)
"""What CUDA and NVIDIA's driver print when a GPU is broken."""


class Tail:
    """The end of a stream of bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Append what was read from the stream."""
        self._bytes += data
        if len(self._bytes) > 2 * KEPT:
            del self._bytes[:-KEPT]

    @property
    def text(self) -> str:
        """The last 32 KiB of the stream."""
        return self._bytes[-KEPT:].decode(errors="replace")


def strip_launcher(output: str) -> str:
    """Return what the ranks of a launcher printed, without the launcher's own last words; of several failed ranks, the first's."""
    if first := FAILED_RANK.search(output):
        mark = f"[rank{first[1]}]: "
        lines = output[first.start() :].splitlines()
        return "\n".join(line[len(mark) :] for line in lines if line.startswith(mark))
    before, found, last = output.rpartition(BEGIN)
    while found and any(name in last for name in LAUNCHER_EXCEPTIONS):
        output = before
        before, found, last = output.rpartition(BEGIN)
    return output


def strip_rank_marks(output: str) -> str:
    """Return what a rank printed, without the marks that torch puts before each line of its traceback."""
    return strip_launcher(output) if FAILED_RANK.search(output) else output


def is_peer_loss(code: int, output: str) -> bool:
    """Return whether a rank exited because it lost another: by its exit code, the exception that ended it, or its last line."""
    output = strip_rank_marks(output)
    cause = tracebacks.of_exit(code, output)[0] or output.strip().rpartition("\n")[2]
    return code == PEER_LOST_CODE or any(mark in cause for mark in PEER_LOST)


def hardware_error(text: str) -> str:
    """Return the first mark of broken hardware in a text, or an empty string."""
    return next((mark for mark in HARDWARE_ERRORS if mark in text), "")
