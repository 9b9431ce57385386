"""Stop all ranks after the same step, so that each can write its part of a checkpoint: what a rank and its agent share.

The two share a file in memory, read and written under its lock. So a rank has either seen the request, or is known to
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
"""The exit code of a rank that exited because `must_stop` returned True."""
STOP_SUFFIX = ".stop"
"""Of the file beside a rank's progress file. It is there once the rank has called `must_stop`."""
UNKNOWN = -1
PATIENCE_SECONDS = 20.0
"""How long a rank waits for the step, once a stop was requested. The operator gives up sooner."""
LOOK_SECONDS = 0.005
LOCK_SECONDS = 1.0
"""How long the agent tries to lock the file: a rank that was stopped holds its lock for ever."""
LAYOUT = struct.Struct("<qqq")
"""The last step that the rank was let pass or exited after, whether it has to wait for the agreed step, and that step."""


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
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0), 0o600)
        self._waits = True
        if make:
            with self._locked():
                self._write(UNKNOWN, 0, UNKNOWN)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def ends_after(self, step: int) -> bool:
        """Return whether this step is the rank's last, for the rank. Waits while the workers agree."""
        answer = self._decide(step)
        if answer is None:
            end = time.monotonic() + PATIENCE_SECONDS
            while answer is None:
                time.sleep(LOOK_SECONDS)
                # Once only: where the step does not come, this rank would be late at every step.
                self._waits = time.monotonic() < end
                answer = self._decide(step)
        return answer

    def _decide(self, step: int) -> bool | None:
        """Return whether this step is the rank's last, and record that it has passed it; None while it has to wait.

        Not by `_locked`: a rank does this in each step, and a generator takes longer than all else here.
        """
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            _, asked, at = self._read()
            known = at != UNKNOWN
            if asked and not known and self._waits:
                return None
            self._write(step, asked, at)
            return known and step >= at
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def ask(self) -> int:
        """Make the rank wait, for the agent. Returns the last step that it has passed, -1 for none: it goes no further from now on."""
        with self._locked(LOCK_SECONDS):
            passed, _, at = self._read()
            self._write(passed, 1, at)
        return passed

    def set_stop_step(self, at: int) -> None:
        """Let the rank exit after this step. Raises OSError if the rank waited too long and has passed the step."""
        with self._locked(LOCK_SECONDS):
            passed, asked, _ = self._read()
            if passed >= at:
                raise OSError("the rank has passed that step")
            self._write(passed, asked, at)

    @property
    def obeyed(self) -> bool:
        """Whether the rank got the step, and exited after it."""
        with self._locked(LOCK_SECONDS):
            passed, _, at = self._read()
        return UNKNOWN < at <= passed

    def release(self) -> None:
        """Let the rank go on: the workers do not stop."""
        with self._locked(LOCK_SECONDS):
            self._write(self._read()[0], 0, UNKNOWN)

    def _read(self) -> tuple[int, int, int]:
        data = os.pread(self._file, LAYOUT.size, 0)
        if len(data) != LAYOUT.size:
            raise OSError("the file is cut off")
        passed, asked, at = LAYOUT.unpack(data)
        return passed, asked, at

    def _write(self, passed: int, asked: int, at: int) -> None:
        os.pwrite(self._file, LAYOUT.pack(passed, asked, at), 0)

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


@functools.cache
def _slot(path: str) -> Slot:
    return Slot(path, make=True)
