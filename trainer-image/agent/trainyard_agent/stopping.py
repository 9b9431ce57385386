"""An end on which all ranks agree: after one step, the same for all, so that each can write its part of a checkpoint.

The program and the agent share a file in memory. Whoever looks at it holds its lock: a rank has either seen the question, or is known to
be beyond its step.
"""

from __future__ import annotations

import fcntl
import functools
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trainyard_agent.report import count, own_file

SAVED = 90
"""The exit code of a rank that has ended because `must_stop` said so."""
STOP = ".stop"
"""The end of the name of the file, beside that of a rank's progress. It is there once the rank has asked."""
UNKNOWN = -1
PATIENCE_SECONDS = 20.0
"""How long a rank waits to be told the step, once it is known that there will be one. The operator gives up sooner."""
LOOK_SECONDS = 0.005
LOCK_SECONDS = 1.0
"""How long the agent tries to get at the file: a rank that was stopped holds its lock for ever."""
FORM = struct.Struct("<qqq")
"""The last step that the rank was let pass or has ended after, whether it has to wait for an agreement, and the step of that."""


def must_stop(step: int) -> bool:
    """Whether all ranks end after `step`: because a worker is evicted, its node drained, or the job suspended.

    To be called by each rank after each step, with the same number on all. The answer is the same on all: where it is True, each writes
    its part of a checkpoint and ends with exit code `SAVED` (90), which costs the job none of its restarts. Takes some microseconds, and
    for a moment as long as the ranks need to agree. False where no agent listens. Raises ValueError for what is no step.
    """
    done, path = count("step", step), own_file()
    if done is None or not path:
        return False
    try:
        return _slot(path + STOP).ends_after(done)
    except OSError:
        return False


class Slot:
    """The file of one rank. Raises OSError where it cannot be had."""

    def __init__(self, path: str, *, make: bool = False) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0), 0o600)
        self._patient = True
        if make:
            with self._held():
                self._write(UNKNOWN, 0, UNKNOWN)

    def close(self) -> None:
        """Not used any more."""
        os.close(self._file)

    def ends_after(self, step: int) -> bool:
        """The rank's side: whether this step is its last. Waits while that is being agreed upon."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            with self._held():
                _, asked, at = self._read()
                known = at != UNKNOWN
                if known and step >= at:
                    self._write(step, asked, at)
                    return True
                if known or not asked or not self._patient:
                    self._write(step, asked, at)
                    return False
            # Once only: whoever is to say it does not, and this rank would be late at every step.
            self._patient = time.monotonic() < end
            time.sleep(LOOK_SECONDS)

    def ask(self) -> int:
        """The agent's side: from now on the rank waits before it goes beyond the step that is answered. -1: it has passed none yet."""
        with self._held(LOCK_SECONDS):
            passed, _, at = self._read()
            self._write(passed, 1, at)
        return passed

    def settle(self, at: int) -> None:
        """The rank ends after this step. Raises OSError where it has waited for too long to be told, and is beyond it."""
        with self._held(LOCK_SECONDS):
            passed, asked, _ = self._read()
            if passed >= at:
                raise OSError("the rank is beyond that step")
            self._write(passed, asked, at)

    @property
    def obeyed(self) -> bool:
        """Whether the rank knows that it was to end, and did."""
        with self._held(LOCK_SECONDS):
            passed, _, at = self._read()
        return UNKNOWN < at <= passed

    def release(self) -> None:
        """The rank goes on: there is no agreement."""
        with self._held(LOCK_SECONDS):
            self._write(self._read()[0], 0, UNKNOWN)

    def _read(self) -> tuple[int, int, int]:
        data = os.pread(self._file, FORM.size, 0)
        if len(data) != FORM.size:
            raise OSError("the file is cut off")
        passed, asked, at = FORM.unpack(data)
        return passed, asked, at

    def _write(self, passed: int, asked: int, at: int) -> None:
        os.pwrite(self._file, FORM.pack(passed, asked, at), 0)

    @contextmanager
    def _held(self, seconds: float | None = None) -> Iterator[None]:
        """With the lock. `seconds`: raises BlockingIOError where it is not to be had for so long."""
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


@functools.cache
def _slot(path: str) -> Slot:
    return Slot(path, make=True)
