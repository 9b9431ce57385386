"""The ranks of this worker, as one: started together, watched, and ended together. Knows nothing of why it is told to."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from trainyard_agent import processes
from trainyard_agent.spawn import SIGNALS, STANDARD_ERROR, spawn
from trainyard_agent.words import Tail

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Those by which this worker is asked to end."""
WOKEN = b"\0"
"""No signal has this number."""
KILL_SECONDS = 20.0
"""How long processes that were killed are waited for: to give back the memory of a GPU takes its time."""

LAST_READS = 64
"""Of 64 KiB each: more than a pipe holds."""


class Ending(NamedTuple):
    """A rank that has ended."""

    rank: int
    code: int
    """Its exit code; 128 + n where signal n killed it."""
    said: str
    """The end of its standard error."""


class _Rank(NamedTuple):
    rank: int
    pid: int
    pipe: int
    tail: Tail


class Group:
    """The processes of one attempt at a time. Use it in a `with`: it takes over signals and children, and leaves none behind."""

    def __init__(self, heard: list[int] | None = None) -> None:
        """`heard`: the signals that have come before."""
        self.endings: list[Ending] = []
        """Those of the attempt that have ended, in that order."""
        self.heard: list[int] = [] if heard is None else heard
        """The signals that came, in that order."""
        self.spared: set[int] = set()
        """PIDs that belong to no attempt, and outlast each, with all that they have started."""
        self.has_run = False
        """Whether anything was ever started."""
        self._running: dict[int, _Rank] = {}
        self._told: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._before: list[tuple[int, object]] = []

    def __enter__(self) -> Group:  # noqa: PYI034 - Self needs Python 3.11
        processes.adopt_orphans()
        self._wake, wakes = os.pipe()
        for end in (self._wake, wakes):
            os.set_blocking(end, False)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._wakes = wakes
        self._old_wake = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self._before = [(number, signal.signal(number, _nothing)) for number in (*SIGNALS, signal.SIGCHLD)]
        return self

    def __exit__(self, *_: object) -> None:
        self.spared.clear()
        self.kill()
        for each in [*self._running.values()]:
            self._forget(each)
        signal.set_wakeup_fd(self._old_wake)
        for number, handler in self._before:
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() itself gave
        self._selector.close()
        # No descriptor any more for `wake`, which another thread may call.
        wakes, self._wakes = self._wakes, -1
        os.close(self._wake)
        os.close(wakes)

    def begin(self) -> None:
        """Forget the attempt before, of which nothing runs any more."""
        self.endings, self._told = [], set()

    def start(self, command: Sequence[str], environments: Mapping[int, Mapping[str, str]]) -> None:
        """Start the command once for each rank, when nothing runs. Raises OSError where it cannot be started at all."""
        self.begin()
        for rank, environment in environments.items():
            ours, theirs = os.pipe()
            try:
                pid = spawn(command, environment, theirs)
            except OSError:
                os.close(ours)
                raise
            finally:
                os.close(theirs)
            self.adopt(rank, pid, ours)

    def adopt(self, rank: int, pid: int, pipe: int) -> None:
        """Take up a child that runs, or has run, as a rank. `pipe`: where its standard error comes out."""
        self.has_run = True
        os.set_blocking(pipe, False)
        each = self._running[pid] = _Rank(rank, pid, pipe, Tail())
        self._selector.register(pipe, selectors.EVENT_READ, each)

    def listen(self, file: int, heard: Callable[[], object]) -> None:
        """While waiting, also call `heard` when there is something to read."""
        self._selector.register(file, selectors.EVENT_READ, heard)

    def ignore(self, file: int) -> None:
        """Not any more."""
        self._selector.unregister(file)

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return [each.rank for each in self._running.values()]

    @property
    def stopped(self) -> set[int]:
        """The ranks whose process was stopped, by SIGSTOP or a debugger."""
        return {each.rank for each in self._running.values() if processes.is_stopped(each.pid)}

    @property
    def failed(self) -> bool:
        """Whether a rank has ended with an error."""
        return any(ending.code != 0 for ending in self.endings)

    @property
    def asked(self) -> int:
        """How many signals have come by which this worker is to end."""
        return sum(number in ENDING for number in self.heard)

    @property
    def asked_to_end(self) -> bool:
        """Whether there was one."""
        return self.asked > 0

    @property
    def empty(self) -> bool:
        """Whether nothing runs any more that belongs to an attempt."""
        return not self._running and not processes.descendants(os.getpid(), self.spared)

    def wake(self) -> None:
        """End a wait. From any thread, and when the group has ended too."""
        with contextlib.suppress(OSError):
            os.write(self._wakes, WOKEN)

    def wait(self, seconds: float | None) -> None:
        """Until something happens, for so long at most: a rank ends, a signal comes, a rank says something."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._signalled()
            elif not isinstance(key.data, _Rank):
                key.data()
            elif key.data.pid in self._running:
                # Not one that was reaped a moment ago, with the signal that this batch has told of before.
                self._pump(key.data)

    def end(self, number: int, patience: float) -> None:
        """Ask all ranks to end by a signal, wait for that, and kill what is left."""
        end = time.monotonic() + patience
        self.send(number)
        while self._running and (left := end - time.monotonic()) > 0:
            self.wait(left)
        self.kill()

    def kill(self) -> None:
        """All that belongs to the attempt."""
        processes.kill_all(os.getpid(), KILL_SECONDS, self._reap, self.spared)

    def keep_no_cores(self) -> None:
        """What the ranks leave at their end are words, and not all of their memory in a file."""
        for pid in processes.descendants(os.getpid(), self.spared):
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))

    def send(self, number: int) -> None:
        """Send a signal to all ranks."""
        for pid in [*self._running]:
            self._told.update(processes.pass_on(number, pid))

    def ask(self, number: int) -> None:
        """Send a signal to those ranks that catch it, through shells and launchers."""
        for pid in [*self._running]:
            processes.ask(number, pid)

    def outlasted(self) -> bool:
        """Whether something that was told to end still runs though the ranks have ended: what a shell had waited for."""
        return not self._told.isdisjoint(processes.descendants(os.getpid()))

    def _signalled(self) -> None:
        for number in os.read(self._wake, 4096):
            if number not in {signal.SIGCHLD, *WOKEN}:
                self.heard.append(number)
        # Always: of many children that end at once one signal tells.
        self._reap()

    def _reap(self) -> None:
        for pid, code in processes.reap():
            self.spared.discard(pid)
            each = self._running.pop(pid, None)
            if each is not None:
                self._forget(each)
                self.endings.append(Ending(each.rank, code, each.tail.text))

    def _pump(self, each: _Rank) -> bool:
        """Pass on what a rank has said. Whether there may be more."""
        try:
            data = os.read(each.pipe, 65536)
        except BlockingIOError:
            return False
        if not data:
            if each.pipe in self._selector.get_map():
                self._selector.unregister(each.pipe)
            return False
        each.tail.feed(data)
        # Where nobody reads any more there is nobody to tell.
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(STANDARD_ERROR, data) :]
        return True

    def _forget(self, each: _Rank) -> None:
        # What it said last, and no more: what it has left behind may go on talking.
        for _ in range(LAST_READS):
            if not self._pump(each):
                break
        if each.pipe in self._selector.get_map():
            self._selector.unregister(each.pipe)
        os.close(each.pipe)


def _nothing(_number: int, _frame: object) -> None:
    """The signal is told by the pipe. Without a handler it would end the agent, or, to PID 1, not be told."""
