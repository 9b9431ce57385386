"""Run the ranks of this worker as one group: start them together, watch them, stop them together. Decides nothing."""

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
from trainyard_agent.activity import Activity
from trainyard_agent.deepspeed import with_local_rank
from trainyard_agent.exit_cause import Tail
from trainyard_agent.signalling import Signalling, catching_ranks
from trainyard_agent.spawn import SIGNALS, STANDARD_ERROR, TERMINATION_SIGNALS, has_input, spawn

WAKE_BYTE = b"\0"
"""No signal has this number."""
KILL_SECONDS = 20.0
"""How long to wait for killed processes: to give back the memory of a GPU takes its time."""
STOP_SECONDS = 2.0
"""How long a rank gets to exit that has no handler for SIGTERM, or is blocked; and a launcher whose ranks have exited."""
LOOK_SECONDS = 0.1
"""How often to look at processes of which no signal tells that they have exited."""
LAST_READS = 64
"""Of 64 KiB each: more than a pipe holds."""


class Exit(NamedTuple):
    """The exit of a rank."""

    rank: int
    code: int
    """Its exit code; 128 + n where signal n killed it."""
    output: str
    """The end of its standard error."""
    pid: int = 0


class _Rank(NamedTuple):
    rank: int
    pid: int
    pipe: int
    tail: Tail


class Group:
    """The processes of one attempt at a time. Use it in a `with`: it takes over signals and children, and leaves none behind."""

    def __init__(self, signals: list[int] | None = None) -> None:
        """`signals`: those that have come before."""
        self.exits: list[Exit] = []
        """The ranks of the attempt that have exited, in that order."""
        self.signals: list[int] = [] if signals is None else signals
        """The signals that came, in that order."""
        self.protected: set[int] = set()
        """PIDs that belong to no attempt, and outlive each, with all that they have started."""
        self.filters: dict[int, Callable[[bytes], bytes]] = {}
        """By rank, what returns the part of its output that is passed on and kept."""
        self.has_run = False
        """Whether anything was ever started."""
        self._running: dict[int, _Rank] = {}
        self._signalling = Signalling()
        self._starts_ranks = False
        self._selector = selectors.DefaultSelector()
        self._handlers: list[tuple[int, object]] = []

    def __enter__(self) -> Group:  # noqa: PYI034 - Self needs Python 3.11
        processes.adopt_orphans()
        self._wake_reader, writer = os.pipe()
        for end in (self._wake_reader, writer):
            os.set_blocking(end, False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._wake_writer = writer
        self._old_wakeup_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._handlers = [(number, signal.signal(number, _ignore)) for number in (*SIGNALS, signal.SIGCHLD)]
        return self

    def __exit__(self, *_: object) -> None:
        self.protected.clear()
        self.kill()
        for each in [*self._running.values()]:
            self._forget(each)
        signal.set_wakeup_fd(self._old_wakeup_fd)
        for number, handler in self._handlers:
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() itself gave
        self._selector.close()
        # No descriptor any more for `wake`, which another thread may call.
        writer, self._wake_writer = self._wake_writer, -1
        os.close(self._wake_reader)
        os.close(writer)

    def reset(self) -> None:
        """Forget the attempt before, of which nothing runs any more."""
        self.exits, self._signalling, self._starts_ranks = [], Signalling(), False

    def start(
        self,
        command: Sequence[str],
        environments: Mapping[int, Mapping[str, str]],
        *,
        starts_ranks: bool = False,
        local_rank_at: int | None = None,
    ) -> None:
        """Start the command once for each rank, when nothing runs. Raises OSError where it cannot be started at all.

        `starts_ranks`: the command starts the ranks itself, and signals are meant for those. `local_rank_at`: where in the command
        each rank gets the argument with its local rank; None: nowhere.
        """
        self.reset()
        # Several processes would each get parts of what somebody types.
        shares_input = len(environments) == 1 and has_input()
        self._starts_ranks = starts_ranks
        for rank, environment in environments.items():
            words = with_local_rank(command, local_rank_at, environment)
            self.start_one(rank, words, environment, shares_input=shares_input)

    def start_one(
        self, rank: int, words: Sequence[str], environment: Mapping[str, str], *, shares_input: bool = False
    ) -> int:
        """Start one more process beside those that run, and return its PID. Raises OSError where it cannot be started at all."""
        ours, theirs = os.pipe()
        try:
            pid = spawn(words, environment, theirs, shares_input=shares_input)
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self.adopt(rank, pid, ours)
        return pid

    def adopt(self, rank: int, pid: int, pipe: int) -> None:
        """Take up a child that runs, or has run, as a rank. `pipe`: where its standard error comes out."""
        self.has_run = True
        os.set_blocking(pipe, False)
        each = self._running[pid] = _Rank(rank, pid, pipe, Tail())
        self._selector.register(pipe, selectors.EVENT_READ, each)

    def watch_file(self, file: int, readable: Callable[[], object]) -> None:
        """While waiting, also call `readable` when there is something to read."""
        self._selector.register(file, selectors.EVENT_READ, readable)

    def unwatch_file(self, file: int) -> None:
        """Undo `watch_file`."""
        self._selector.unregister(file)

    @property
    def running(self) -> list[int]:
        """The ranks that have not exited."""
        return [each.rank for each in self._running.values()]

    @property
    def pids(self) -> dict[int, int]:
        """The PIDs of the ranks that have not exited; of a launcher, its own."""
        return {each.rank: pid for pid, each in self._running.items()}

    @property
    def running_pids(self) -> set[int]:
        """The PIDs of all processes that were started and have not exited; several may have one rank, as daemons of MPI."""
        return {*self._running}

    @property
    def stopped(self) -> set[int]:
        """The ranks whose process was stopped, by SIGSTOP or a debugger."""
        return {each.rank for each in self._running.values() if processes.is_stopped(each.pid)}

    @property
    def failed(self) -> bool:
        """Whether a rank has exited with an error."""
        return any(exited.code != 0 for exited in self.exits)

    @property
    def terminations(self) -> int:
        """How many signals have come by which this worker is asked to exit: one of those that mean it, or one that ended a rank."""
        ended_ranks = {exited.code - 128 for exited in self.exits}
        return sum(number in TERMINATION_SIGNALS or number in ended_ranks for number in self.signals)

    @property
    def is_terminating(self) -> bool:
        """Whether there was such a signal."""
        return self.terminations > 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs any more that belongs to an attempt."""
        return not self._running and not processes.descendants(os.getpid(), self.protected)

    def wake(self) -> None:
        """End a wait. From any thread, also when the group is closed."""
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, WAKE_BYTE)

    def wait(self, seconds: float | None) -> None:
        """Wait until something happens, for so long at most: a rank exits, a signal comes, a rank prints something."""
        if self._signalling.holds:
            self._signalling.release()
            seconds = LOOK_SECONDS if seconds is None else min(seconds, LOOK_SECONDS)
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._read_signals()
            elif not isinstance(key.data, _Rank):
                key.data()
            elif key.data.pid in self._running:
                # Not one that was reaped a moment ago, by the signal of this very batch.
                self._pump(key.data)

    def stop(self, number: int, patience: float) -> None:
        """Ask all ranks to exit by a signal, wait for that, and kill what is left."""
        end = time.monotonic() + patience
        self.send(number)
        while self._running and (left := end - time.monotonic()) > 0:
            self.wait(left)
        self.kill()

    def stop_after_saving(self, grace: float, is_saving: Callable[[], bool]) -> None:
        """Ask all ranks to exit by SIGTERM, wait while they save their work, for `grace` seconds at most, and kill what is left.

        Ranks without a handler, and ranks of which all are blocked, get two seconds. `is_saving`: whether a rank says that it saves.
        If this worker is asked to exit meanwhile, the limit is that of the pod.
        """
        began, asked = time.monotonic(), self.terminations
        self.send(signal.SIGTERM)
        savers = [pid for pid in self._signalling.running if processes.catches(pid, signal.SIGTERM)]
        activity = Activity(savers)
        while self._running or self.has_outlasting_children():
            waited = time.monotonic() - began
            is_idle = activity.idle_seconds() >= STOP_SECONDS and not is_saving()
            is_over = waited >= grace or is_idle or not any(map(processes.is_alive, savers))
            if waited >= STOP_SECONDS and is_over and self.terminations == asked:
                break
            self.wait(LOOK_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill all that belongs to the attempt."""
        processes.kill_all(os.getpid(), KILL_SECONDS, self._reap, self.protected)

    def disable_core_dumps(self) -> None:
        """Keep the ranks from writing all of their memory into a file when they exit by a signal."""
        for pid in processes.descendants(os.getpid(), self.protected):
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))

    def send(self, number: int) -> None:
        """Send a signal to all ranks."""
        for pid in [*self._running]:
            self._signalling.send(number, pid, starts_ranks=self._starts_ranks)

    def ask(self, number: int) -> None:
        """Send a signal to those ranks that catch it, through shells and launchers."""
        for pid in [*self._running]:
            ranks = catching_ranks(number, pid, starts_ranks=self._starts_ranks)
            for each in ranks:
                processes.send(number, each)
            if not ranks:
                processes.ask(number, pid)

    def has_outlasting_children(self) -> bool:
        """Return whether a process that got a signal still runs though the ranks have exited: what a shell had waited for."""
        return not self._signalling.pids.isdisjoint(processes.descendants(os.getpid()))

    def _read_signals(self) -> None:
        for number in os.read(self._wake_reader, 4096):
            if number not in {signal.SIGCHLD, *WAKE_BYTE}:
                self.signals.append(number)
        # Always: one signal may stand for many children that exit at once.
        self._reap()

    def _reap(self) -> None:
        for pid, code in processes.reap():
            self.protected.discard(pid)
            each = self._running.pop(pid, None)
            if each is not None:
                self._forget(each)
                self.exits.append(Exit(each.rank, self._signalling.ended.get(pid, code), each.tail.text, pid))

    def _pump(self, each: _Rank) -> bool:
        """Pass on what a rank has printed. Returns whether there may be more."""
        try:
            data = os.read(each.pipe, 65536)
        except BlockingIOError:
            return False
        if not data:
            if each.pipe in self._selector.get_map():
                self._selector.unregister(each.pipe)
            return False
        if each.rank in self.filters:
            data = self.filters[each.rank](data)
        each.tail.feed(data)
        # If stderr has no reader any more, the output is lost.
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(STANDARD_ERROR, data) :]
        return True

    def _forget(self, each: _Rank) -> None:
        # What it printed last, and no more: what it has left behind may go on printing.
        for _ in range(LAST_READS):
            if not self._pump(each):
                break
        if each.pipe in self._selector.get_map():
            self._selector.unregister(each.pipe)
        os.close(each.pipe)


def _ignore(_number: int, _frame: object) -> None:
    """The pipe reports the signal. Without a handler it would end the agent, or, as PID 1, not arrive."""
