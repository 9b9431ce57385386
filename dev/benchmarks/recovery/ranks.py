"""The training processes, as the machine that plays the nodes sees them: they are found, hit, and watched as they end."""

import os
import select
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

NAME: Final = "bench-rank-"
POLL_SECONDS: Final = 0.2


def living(job: str) -> dict[int, int]:
    """The process of each rank of a job, by rank."""
    found: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):
            name = (folder / "comm").read_text().strip()
            if name.startswith(NAME) and f"BENCH_JOB={job}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(name.removeprefix(NAME))] = int(folder.name)
    return found


def send(pid: int, number: signal.Signals) -> float:
    """A signal to a process. Returns when it was sent."""
    now = time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return now


class Farewell:
    """Sees processes end. A number is not asked twice: the handle is of the very process."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._left: set[int] = set()
        for pid in pids:
            with suppress(ProcessLookupError):
                self._left.add(os.pidfd_open(pid))
        self._ended: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def last(self) -> float | None:
        """When the last of them had ended; None while one lives."""
        return max(self._ended, default=None) if not self._left else None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for handle in self._left:
            os.close(handle)

    def _look(self) -> None:
        poll = select.poll()
        for handle in self._left:
            poll.register(handle, select.POLLIN)
        while self._left and not self._over.is_set():
            for handle, _ in poll.poll(POLL_SECONDS * 1000):
                self._ended.append(time.monotonic())
                poll.unregister(handle)
                os.close(handle)
                self._left.discard(handle)
