"""Stop all ranks after the same step, so that each can write its part of a checkpoint: what a rank and its agent share.

The two share a file in memory. A rank maps it: to write its step and read the request costs no system call. Each number has one
writer. A rank writes its step before it reads, and the agent reads some time after it has written. So a rank has either
seen the request, or is known to be beyond its step. From the request on, both read and write under the file's lock.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from trainyard_agent.report import count, own_file

SAVED = 90
"""The exit code of a rank that exited because `must_stop` returned True."""
STOP_SUFFIX = ".stop"
"""Of the file beside a rank's progress file. It is there once the rank has called `must_stop`."""
UNKNOWN = -1
PATIENCE_SECONDS = 20.0
"""How long a rank waits for the step, once a stop was requested. The operator gives up sooner."""
LOOK_SECONDS = 0.005
LOCK_SECONDS = 1.0
"""How long the agent tries to lock the file: a rank that was stopped holds its lock for ever."""
VISIBLE_SECONDS = 0.01
"""Between the request and the look at a rank's step. A processor shows others what it has written after microseconds."""
LAYOUT = struct.Struct("=qqq")
"""The last step that the rank was let pass or exited after, whether it has to wait for the agreed step, and that step."""
PASSED, ASKED = 0, 1
"""The places of the first two."""
REQUEST, REQUEST_OFFSET = struct.Struct("=qq"), 8
"""The last two, which the agent writes."""


def must_stop(step: int) -> bool:
    """Return whether all ranks stop after `step`: a worker is evicted, its node is drained, or the job is suspended, for example.

    Each rank calls this after each step, with the same number on all. The answer is the same on all. If it is True,
    each writes its part of a checkpoint and exits with code `SAVED` (90), which does not count against the restart
    budget. Takes some microseconds, and once as long as the ranks need to agree. False where no agent listens. Raises
    ValueError for what is no step.
    """
    done, path = count("step", step), own_file()
    if done is None or not path:
        return False
    try:
        return _slot(path + STOP_SUFFIX).ends_after(done)
    except OSError:
        return False


class Slot:
    """The file that one rank shares with its agent. Raises OSError where it cannot be opened."""

    def __init__(self, path: str, *, make: bool = False) -> None:
        """`make`: for the rank, which makes the file and maps it."""
        if make:
            _make_file(path)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0), 0o600)
        self._waits = True
        if make:
            with self._locked():
                os.pwrite(self._file, LAYOUT.pack(UNKNOWN, 0, UNKNOWN), 0)
            self._numbers = memoryview(mmap.mmap(self._file, LAYOUT.size)).cast("q")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def ends_after(self, step: int) -> bool:
        """Return whether this step is the rank's last, for the rank. Waits while the workers agree."""
        if os.fstat(self._file).st_size < LAYOUT.size:
            # To read a mapped file beyond its end would kill the process.
            raise OSError("the file is cut off")
        numbers = self._numbers
        before = numbers[PASSED]
        # In this order: see the top of this file.
        numbers[PASSED] = step
        return bool(numbers[ASKED]) and self._agree(before, step)

    def _agree(self, before: int, step: int) -> bool:
        """Return whether this step is the last, once that is known. `before`: the step that the rank has passed until then."""
        answer = self._decide(before, step)
        end = time.monotonic() + PATIENCE_SECONDS
        while answer is None:
            time.sleep(LOOK_SECONDS)
            # Once only: where the step does not come, this rank would be late at every step.
            self._waits = time.monotonic() < end
            answer = self._decide(before, step)
        return answer

    def _decide(self, before: int, step: int) -> bool | None:
        """Return whether this step is the rank's last, and record whether it has passed it; None while it has to wait."""
        with self._locked():
            _, asked, at = self._read()
            known = at != UNKNOWN
            waits = bool(asked) and not known and self._waits
            self._numbers[PASSED] = before if waits else step
        return None if waits else known and step >= at

    def hold(self) -> None:
        """Make the rank wait after its current step, for the agent."""
        with self._locked(LOCK_SECONDS):
            self._request(1, self._read()[2])

    @property
    def passed(self) -> int:
        """The last step that the rank has passed, -1 for none."""
        with self._locked(LOCK_SECONDS):
            return self._read()[PASSED]

    def set_stop_step(self, at: int) -> None:
        """Let the rank exit after this step. Raises OSError if the rank waited too long and has passed the step."""
        with self._locked(LOCK_SECONDS):
            passed, asked, _ = self._read()
            if passed >= at:
                raise OSError("the rank has passed that step")
            self._request(asked, at)

    @property
    def obeyed(self) -> bool:
        """Whether the rank got the step, and exited after it."""
        with self._locked(LOCK_SECONDS):
            passed, _, at = self._read()
        return UNKNOWN < at <= passed

    def release(self) -> None:
        """Let the rank go on: the workers do not stop."""
        with self._locked(LOCK_SECONDS):
            self._request(0, UNKNOWN)

    def _read(self) -> tuple[int, int, int]:
        data = os.pread(self._file, LAYOUT.size, 0)
        if len(data) != LAYOUT.size:
            raise OSError("the file is cut off")
        passed, asked, at = LAYOUT.unpack(data)
        return passed, asked, at

    def _request(self, asked: int, at: int) -> None:
        os.pwrite(self._file, REQUEST.pack(asked, at), REQUEST_OFFSET)

    @contextmanager
    def _locked(self, seconds: float | None = None) -> Iterator[None]:
        """Hold the lock. `seconds`: raises BlockingIOError where another process holds it for so long."""
        end = None if seconds is None else time.monotonic() + seconds
        while end is not None:
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > end:
                raise BlockingIOError("another process holds the lock")
            time.sleep(LOOK_SECONDS)
        else:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def hold_all(slots: Collection[Slot]) -> int:
    """Make ranks wait, for the agent. Returns a step that none goes beyond from now on, -1 for none.

    It is the furthest step that a rank has passed, or the one after it where that rank has still to see that it waits.
    """
    for slot in slots:
        slot.hold()
    time.sleep(VISIBLE_SECONDS)
    return max(slot.passed for slot in slots)


def _make_file(path: str) -> None:
    """Make the file, whole from its first moment: the agent may read it at any time. One that exists stays."""
    partial = f"{path}.{os.getpid()}"
    # Where this is not possible, it is made when it is opened.
    with suppress(OSError):
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(file, LAYOUT.pack(UNKNOWN, 0, UNKNOWN))
            os.link(partial, path)
        finally:
            os.close(file)
            os.unlink(partial)  # noqa: PTH108 - no pathlib here


@functools.cache
def _slot(path: str) -> Slot:
    return Slot(path, make=True)
