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
    "Horovod has been shut down",
)
"""What gloo, NCCL, the store, torchrun and Horovod print in a rank that lost another rank."""
XGBOOST_ERROR = "XGBoostError"
XGBOOST_PEER_LOST = re.compile(
    r"The other end is likely closed|Failed to connect to the tracker|(?:Allreduce|Allgather|Broadcast) failed"
)
"""What the details of its exception say in a rank that lost another rank, or the tracker, which is in the process of rank 0."""
JAX_PEER_LOST = re.compile(
    r"^F.*Terminating process because the JAX distributed service detected fatal errors", re.MULTILINE
)
"""What JAX prints before it aborts a rank that lost another rank, or the coordinator. Frames of C++ and metrics may follow."""
GLOO_PEER_LOST = re.compile(
    r"^terminate called after throwing an instance of 'gloo::IoException'\n"
    r"  what\(\): .*(?:Connection closed by peer|Connection reset by peer|Broken pipe)",
    re.MULTILINE,
)
"""What the C++ library prints before it aborts a rank of Paddle that lost another rank. Paddle's own report may follow."""
OWN_FAULT = re.compile(
    r"CUDA error|Cuda failure|\bECC\b|NVLink|unhandled (?:cuda|system) error|ncclUnhandledCudaError|ncclSystemError"
)
"""In the same words: what NCCL and its watchdog say of the rank's own device or system. Such a rank is a cause, and no victim."""
WATCHDOG = re.compile(r"^.*[Ww]atchdog thread terminated with exception: .*$", re.MULTILINE)
"""What torch logs where its watchdog of NCCL finds an error, which the main thread may never see."""
EXCEPTION_CHARACTERS = 1024
"""Of an exception with its details; the frames of C++ follow."""
NCCL_WARNING = re.compile(r"^.* NCCL WARN .*$", re.MULTILINE)
MAX_WARNINGS, WARNING_CHARACTERS = 3, 300
PEER_LOST_CODE = 92
ABORTED_CODE = 128 + 6
"""Of a process that SIGABRT has ended."""
HARDWARE_ERRORS = (
    "uncorrectable ECC",
    "uncorrectable NVLink",
    "fallen off the bus",
    "CUDA error: unknown error",
    "CUDA error: unspecified launch failure",
    "CUDA error: hardware",
    "Cuda failure 'unknown error'",
    "Cuda failure 999",
    "Cuda failure 'unspecified launch failure'",
    "Cuda failure 719",
    "system not yet initialized",
    "busy or unavailable",
    "Driver/library version mismatch",
    "unsupported display driver / cuda driver combination",
    "NVRM: Xid",
)
"""What CUDA, NCCL and NVIDIA's driver print when a GPU, its driver or the fabric manager of its node is broken.

NCCL's "Got completion … with error" is none of them: the network cards of ranks that lost a peer report it, too.
"""


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
        """The last 32 KiB of the stream, as text: Open MPI prints null bytes beside the lines of ranks."""
        return self._bytes[-KEPT:].replace(b"\0", b"").decode(errors="replace")


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
    """Return whether a rank exited because it lost another: by its exit code, the exception that ended it, or its last line.

    NCCL's exceptions have one type for both: a lost rank, and a fault of the rank's own GPU or system, which their text names.
    """
    if code == PEER_LOST_CODE:
        return True
    if code == ABORTED_CODE and any(each.search(output) for each in (JAX_PEER_LOST, GLOO_PEER_LOST)):
        return True
    output = strip_rank_marks(output)
    exception, text = tracebacks.of_exit(code, output)
    cause = exception or output.strip().rpartition("\n")[2]
    # Without the traceback's frames, whose source lines may have any words.
    details = text[max(0, text.rfind(exception)) :][:EXCEPTION_CHARACTERS] if exception else ""
    if XGBOOST_ERROR in exception and XGBOOST_PEER_LOST.search(details):
        return True
    if not any(mark in cause for mark in PEER_LOST):
        return False
    return not any(map(OWN_FAULT.search, (cause, details, watchdog_error(output))))


def watchdog_error(output: str) -> str:
    """Return the last line in which torch's watchdog of NCCL names an error; empty where there is none."""
    return next((found.group() for found in reversed([*WATCHDOG.finditer(output)])), "")


def nccl_warnings(output: str) -> str:
    """Return the last warnings of NCCL: they say why a collective failed, which the exception often does not."""
    found = dict.fromkeys(each.group().strip()[:WARNING_CHARACTERS] for each in NCCL_WARNING.finditer(output))
    return "\n".join([*found][-MAX_WARNINGS:])


def hardware_error(text: str) -> str:
    """Return the first mark of broken hardware in a text, or an empty string."""
    return next((mark for mark in HARDWARE_ERRORS if mark in text), "")
