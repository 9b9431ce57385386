"""The file in which a rank reports its progress to the agent: the writer's side. The reader's is `report.read`."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import mmap
import os
import signal
import struct
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping

STACK_SUFFIX = ".stack"
"""Of the file beside a rank's own into which it writes its stacks."""
STACKS = getattr(signal, "SIGRTMAX", 64) - 2
"""The signal at which a program that reports progress writes the stacks of all its threads, and goes on."""
MAX_BYTES = 1024
"""Of the text in a progress file."""
LATEST = struct.Struct("=qdd")
"""Behind the text of the library: the last step, its loss and its compute time in seconds, where these are newer than the text.
NaN: not known."""
TEXT_SECONDS = 0.05
"""Between two texts, as long as only these numbers change. A step of a millisecond costs a memory access so, and no system call."""
MIN_STEPS, REMEMBERED_STEPS = 3, 31
"""After so many steps the usual time of one is known; so many are remembered."""


class ReportFile:
    """The progress file of this process. Raises OSError where it cannot be written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._fields = {"pid": str(os.getpid())}
        """The JSON text of each field. A step changes few of them, and to encode them all would take longer than the rest of a report."""
        self.phase: str | None = None
        """The last phase; None where nothing was reported."""
        self._step: int | None = None
        """The last step."""
        self._total: int | None = None
        self._loss = math.nan
        self._text_due = 0.0
        """When the next text is due, though no more than the latest numbers change."""
        self._latest: tuple[memoryview[int], memoryview[float]] | None = None
        """The latest numbers in the mapped file, as integers and as floats."""
        self._measured_step: int | None = None
        """The last step whose end was measured."""
        self._measured_at: float | None = None
        """When that was, if nothing else was done since."""
        self._step_seconds: deque[float] = deque()
        self._sorted_seconds: list[float] = []
        self._stack = os.open(path + STACK_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        # Written by a handler in C, wherever the program is stuck.
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            faulthandler.register(STACKS, file=self._stack, all_threads=True)

    def write(
        self,
        step: int | None,
        phase: str,
        total: int | None,
        loss: float | None,
        compute_seconds: float | None,
        measured: Mapping[str, float] | None,
    ) -> None:
        """Report what `progress` was called with. None: as before, but for the compute time, which is of this step only. Raises OSError."""
        if loss is not None:
            # A loss that has become NaN is not a number any more: there is none then, and not the one from before.
            self._loss = loss
        compute = math.nan if compute_seconds is None else compute_seconds
        now = time.monotonic()
        same = phase == self.phase == "train" and (total is None or total == self._total) and measured is None
        if not (same and now < self._text_due and self._write_latest(step, compute)):
            self._write_text(step, phase, total, compute, measured, now)

    def _write_latest(self, step: int | None, compute_seconds: float) -> bool:
        """Write the numbers of the next step alone, if the file is as it was left."""
        if step is None or self._step is None or step <= self._step or self._latest is None:
            return False
        file = os.fstat(self._file)
        # To write to a mapped file beyond its end would kill the process.
        if not file.st_nlink or file.st_size < MAX_BYTES + LATEST.size:
            return False
        steps, numbers = self._latest
        steps[0], numbers[1], numbers[2] = step, self._loss, compute_seconds
        self._step = step
        return True

    def _write_text(
        self,
        step: int | None,
        phase: str,
        total: int | None,
        compute_seconds: float,
        measured: Mapping[str, float] | None,
        now: float,
    ) -> None:
        """Write all that is known."""
        self._measure(step, phase, now)
        if not os.fstat(self._file).st_nlink:
            self._open_again()
        fields = self._fields
        if self._step is not None:
            fields["step"] = str(self._step)
        self.phase, fields["phase"] = phase, f'"{phase}"'
        if total is not None:
            self._total, fields["total"] = total, str(total)
        _set(fields, "loss", self._loss if math.isfinite(self._loss) else None)
        # Of this step only.
        _set(fields, "computeSeconds", compute_seconds if 0 < compute_seconds < math.inf else None)
        if measured is not None:
            numbers = {name: float(number) for name, number in measured.items()}
            fields["measured"] = json.dumps(
                {name: number for name, number in numbers.items() if 0 <= number < math.inf}
            )
        text = ", ".join([f'"{name}": {value}' for name, value in fields.items()])
        latest = LATEST.pack(-1 if self._step is None else self._step, self._loss, compute_seconds)
        # In one write, and always as long: the reader sees the old or the new content.
        os.pwrite(self._file, f"{{{text}}}".encode().ljust(MAX_BYTES) + latest, 0)
        self._text_due = now + TEXT_SECONDS
        if self._latest is None:
            self._latest = _map_latest(self._file)

    def _open_again(self) -> None:
        """Make new files where the old ones were removed. The descriptors stay: the handler in C knows its own."""
        for file, path in ((self._stack, self._path + STACK_SUFFIX), (self._file, self._path)):
            made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.dup2(made, file, inheritable=False)
            os.close(made)
        self._latest = None

    def _measure(self, step: int | None, phase: str, now: float) -> None:
        """Measure how long steps take, which a process that only reads the file now and then cannot."""
        before, done = self._step, self._step if step is None else step
        if done is not None and before is not None and done < before:
            # Steps are repeated.
            self._measured_step = self._measured_at = None
        elif (done, phase) == (self._measured_step, self.phase):
            return
        last, at = self._measured_step, self._measured_at
        if done is not None and last is not None and done > last and at is not None:
            self._remember((now - at) / (done - last))
        if done is not None:
            self._fields.setdefault("first", str(done))
        self._step = self._measured_step = done
        self._measured_at = now if phase == "train" else None

    def _remember(self, seconds: float) -> None:
        """Add the time of a step, and keep the median of the last ones."""
        remembered, ordered = self._step_seconds, self._sorted_seconds
        remembered.append(seconds)
        insort(ordered, seconds)
        if len(remembered) > REMEMBERED_STEPS:
            del ordered[bisect_left(ordered, remembered.popleft())]
        if len(remembered) >= MIN_STEPS:
            self._fields["seconds"] = repr(round(ordered[len(ordered) // 2], 6))


def _set(fields: dict[str, str], name: str, number: float | None) -> None:
    """Set the JSON text of a finite number, or remove it."""
    if number is None:
        fields.pop(name, None)
    else:
        fields[name] = repr(number)


def _map_latest(file: int) -> tuple[memoryview[int], memoryview[float]] | None:
    """Map the latest numbers of a file, as integers and as floats; None where it cannot be mapped."""
    try:
        latest = memoryview(mmap.mmap(file, MAX_BYTES + LATEST.size))[MAX_BYTES:]
    except (OSError, ValueError):
        return None
    return latest.cast("q"), latest.cast("d")
