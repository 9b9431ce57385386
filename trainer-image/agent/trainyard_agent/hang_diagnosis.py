"""Find out where the ranks of a hung group are, before they are stopped: stacks and NCCL's flight recorders."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import trainyard_stacks
from trainyard_agent import processes, stacks
from trainyard_agent.group import Group
from trainyard_agent.hang import Hang
from trainyard_agent.idle_watch import IdleWatch
from trainyard_agent.operator_link import Failure
from trainyard_agent.progress_files import Progress
from trainyard_agent.rank_records import RankRecords
from trainyard_agent.ranks import Place
from trainyard_agent.recorder import Recorder
from trainyard_agent.report_file import STACKS
from trainyard_agent.reporter import Reporter
from trainyard_agent.termination_message import write

HANG_CODE = 91
STACK_SECONDS = 5.0
"""How long hung ranks get to write their stacks at SIGABRT."""
ASK_SECONDS = 0.5
"""How long ranks get to write their stacks and go on."""
TOGETHER_SECONDS = 1.5
"""Within which the workers of a group notice that it hangs, and report their stacks."""
RECORD_SECONDS = 15.0
"""Within which ranks write their flight recorder. They look for requests once a second, and the first took 6.7 s on an H100."""
POLL_SECONDS = 0.1


class Observers(NamedTuple):
    """What observes the ranks of one attempt."""

    progress: Progress
    recorder: Recorder
    reporter: Reporter
    records: RankRecords
    idle: IdleWatch


class HangDiagnosis:
    """Asks the ranks of one attempt where they are."""

    def __init__(
        self,
        group: Group,
        place: Place,
        observers: Observers,
        log: Callable[[str], None],
    ) -> None:
        self._group, self._log = group, log
        self._progress, self._recorder = observers.progress, observers.recorder
        self._reporter = observers.reporter if place.workers > 1 else None

    def end_hung_ranks(self, hang: Hang, report: Callable[[Failure], object]) -> Failure:
        """Collect the stacks of all ranks, stop the ranks, and report the failure."""
        group, at, launcher = self._group, time.monotonic(), self._progress.launcher
        recorded = self._recorder.ask()
        texts = self._ask_stacks(self._reporter)
        self._await_records(at, recorded=recorded)
        found = stacks.frames_by_rank(texts)
        blocked = self._progress.blocked(found)
        if launcher or set(group.running) - found.keys() - group.stopped:
            group.disable_core_dumps()
            # Python's faulthandler writes the stacks of all threads at this signal.
            group.stop(signal.SIGABRT, STACK_SECONDS)
        else:
            # All have answered, but for those that are stopped, which never would.
            self._log_texts(texts)
            group.kill()
        last = {} if launcher else {exited.rank: exited.output for exited in group.exits}
        found = {**stacks.frames_by_rank(last), **found}
        blocked = {rank: why for rank, why in blocked.items() if rank not in found}
        data, text = stacks.describe_hang(hang, found, blocked, HANG_CODE, self._recorder.summary())
        failure = Failure(HANG_CODE, write(data, text), at)
        report(failure)
        return failure

    def log_stacks(self) -> None:
        """Log the stacks of this worker's ranks where another worker was the first to notice that the group hangs."""
        at, recorded = time.monotonic(), self._recorder.ask()
        texts = self._ask_stacks(None)
        if not self._progress.launcher:
            self._log_texts(texts)
        self._await_records(at, recorded=recorded)

    def log_running_ranks(self, why: str) -> None:
        """Log where each rank is; where none is known, where each program is. They go on. `why`: the reason, which heads the lines."""
        self._progress.forget_traces()
        self._ask_to_write(trainyard_stacks.signal_number())
        texts, programs = self._progress.traces(), dict[int, str]()
        if not texts and self._progress.launcher:
            self._ask_to_write(trainyard_stacks.program_signal_number())
            programs = self._progress.program_traces()
        self._log(f"{why}; stacks follow ranks={len(texts)}" + (f" programs={len(programs)}" if programs else ""))
        for what, found in (("rank", texts), ("process", programs)):
            for number, text in sorted(found.items()):
                self._log(f"{what} {number}: stacks of all threads, the last call first\n{text.strip()}")
        for rank, pid in sorted(self._group.pids.items()):
            if rank not in texts and not self._progress.launcher:
                self._log(f"rank {rank}: no Python stack; process {pid} {processes.describe_wait(pid)}")

    def _ask_to_write(self, number: int) -> None:
        self._group.ask(number)
        self._wait_until(time.monotonic() + ASK_SECONDS)

    def _ask_stacks(self, reporter: Reporter | None) -> dict[int, str]:
        """Return what the ranks write of where they are. The operator gets the same of all workers, and finds the outlier.

        The ranks are left alone for a while: where one exits, those that wait for it elsewhere exit too, and their stacks are lost.
        """
        began = time.monotonic()
        self._ask_to_write(STACKS)
        texts = self._progress.stacks()
        if self._progress.launcher:
            # Ranks without a launcher write their stacks themselves, at the signal that ends them.
            self._log_texts(texts)
        if reporter is not None and reporter.is_active:
            found = stacks.frames_by_rank(texts)
            reporter.report_hang(found, self._progress.blocked(found))
            self._wait_until(began + TOGETHER_SECONDS)
        return dict(texts)

    def _await_records(self, at: float, *, recorded: bool) -> None:
        end = at + RECORD_SECONDS
        while recorded and not self._recorder.answered() and self._can_wait(end):
            self._wait_until(min(time.monotonic() + POLL_SECONDS, end))

    def _log_texts(self, texts: Mapping[int, str]) -> None:
        for rank, text in sorted(texts.items()):
            self._log(f"rank {rank} hangs, or waits for a rank that does\n{text}")

    def _wait_until(self, end: float) -> None:
        """Pass on what the ranks print, until then, or until they or this worker have to exit."""
        while self._can_wait(end):
            self._group.wait(end - time.monotonic())

    def _can_wait(self, end: float) -> bool:
        return bool(self._group.running) and not self._group.is_terminating and time.monotonic() < end
