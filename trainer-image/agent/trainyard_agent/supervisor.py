"""Supervise running ranks: forward signals, notice failures and hangs, obey the operator."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple, Optional

from trainyard_agent.coordinated_stop import CoordinatedStop
from trainyard_agent.exit_cause import is_peer_loss, strip_launcher, strip_rank_marks
from trainyard_agent.failure_cause import PROGRAM
from trainyard_agent.group import Exit, Group
from trainyard_agent.hang_diagnosis import HangDiagnosis, Observers
from trainyard_agent.memory import Kills
from trainyard_agent.operator_link import Failure, OperatorLink
from trainyard_agent.orders import Final
from trainyard_agent.ranks import Place
from trainyard_agent.spawn import TERMINATION_SIGNALS
from trainyard_agent.stopping import SAVED
from trainyard_agent.termination_message import Kind, Termination, failure, is_plain, summary, write

POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0
OWN_RANKS = "startsOwnRanks"
"""The cause of a failure of a command that runs once for each rank, and starts ranks of its own with the same numbers."""
EXPLAINED_BY_OWN_RANKS = frozenset({PROGRAM, "portInUse"})
"""The causes in whose place it is named. An error that may come from outside is none: the ranks may be helpers, and it may pass."""
CAUSE_SECONDS = 3.0
"""How long the rank that is the cause may exit after one that lost it: it closes its process group and its device first."""


class Result(NamedTuple):
    """How the ranks ended: a failure, a stop by the operator's order, or neither."""

    failure: Optional[Failure] = None  # noqa: UP045 - Python 3.9
    stopped: bool = False
    note: Optional[str] = None  # noqa: UP045 - Python 3.9
    """The termination message of a worker whose command succeeded although a rank failed."""


class Supervisor:
    """Supervises the ranks of one attempt, which run already."""

    def __init__(
        self,
        group: Group,
        place: Place,
        observers: Observers,
        stop: CoordinatedStop,
        kills: Kills,
        link: OperatorLink,
        log: Callable[[str], None],
    ) -> None:
        self._group, self._progress, self._recorder = group, observers.progress, observers.recorder
        self._records = observers.records
        self._stop, self._kills, self._link, self._log = stop, kills, link, log
        self._idle = observers.idle
        self._diagnosis = HangDiagnosis(group, place, observers, log)
        self._failure: Failure | None = None
        self._forwarded = len(group.signals)
        """How many of the signals that came were looked at."""
        self._withheld: list[int] = []
        """Signals that the ranks are spared while they stop together."""

    def run(self, restart_grace: float, *, fail_hidden: bool = False) -> Result:
        """Supervise until all ranks have exited: by themselves, because one failed or hung, or by the operator's order.

        `restart_grace`: the seconds that ranks get to save their work when the group restarts. `fail_hidden`: whether a rank that
        fails under a command that succeeds fails this worker.
        """
        group, self._restart_grace = self._group, restart_grace
        self._link.report_idle(False)  # noqa: FBT003 - the only argument
        with closing(self._stop):
            while self._has_work:
                self._wait()
                spared = self._stop.update(group.terminations)
                self._recorder.keep()
                self._kills.look()
                self._records.look()
                self._observe()
                self._forward_signals(spared=spared)
                # Each rank that is asked to exit does so in its own time, to write a checkpoint. The kubelet sets the limit.
                if not group.is_terminating or spared:
                    result = self._act()
                    if result is not None:
                        return result
            self._await_shell_children()
            self._report_stopped_step()
        if self._failure is None and group.failed:
            self._failure = self._describe_failure()
        note = None if self._failure or group.is_terminating else self._check_hidden_failure(fail=fail_hidden)
        return Result(self._failure, note=note)

    @property
    def _has_work(self) -> bool:
        """Whether the attempt goes on in this worker."""
        return bool(self._group.running)

    def _wait(self) -> None:
        intervals = [each for each in (self._progress.interval, self._stop.interval) if each]
        self._group.wait(min(intervals, default=LOOK_SECONDS))

    def _observe(self) -> None:
        """Write the stacks that the operator asks for, and report ranks that do nothing, where they report no progress."""
        group, link = self._group, self._link
        if request := link.pending_stacks():
            self._diagnosis.log_running_ranks("stacks were requested")
            link.report_stacks(request)
        pids = [*group.pids.values()]
        if pids and self._idle.update(pids):
            is_suspect = self._idle.is_idle and not self._progress.is_reported
            if is_suspect:
                self._diagnosis.log_running_ranks("no rank does anything")
            # Then the stacks are in the log for whatever follows from the report.
            link.report_idle(is_suspect)

    def _forward_signals(self, *, spared: bool) -> None:
        """Pass signals on to the ranks, but for those by which they would exit before a better moment."""
        group = self._group
        arrived = [*self._withheld, *group.signals[self._forwarded :]]
        self._forwarded = len(group.signals)
        self._withheld = [number for number in arrived if spared and number in TERMINATION_SIGNALS]
        for number in arrived:
            if number not in self._withheld:
                group.send(number)

    def _act(self) -> Result | None:
        """Do what a failure, an order or a hang asks for. Returns the result where that ends the attempt at once."""
        group, link = self._group, self._link
        # A pod that is being deleted, by whatever signal, leaves its ranks their time: `must_stop` says when that is over.
        is_leaving = group.running and link.view().final is Final.REPLACED
        if group.failed and not (group.running and (is_leaving or self._is_stopping_together())):
            self._stop_after_failure()
        elif self._has_work and link.must_stop():
            self._stop_by_order()
            return Result(stopped=True)
        elif group.running and not self._stop.holds and (hang := self._progress.find_hang(group.running)):
            return Result(self._diagnosis.end_hung_ranks(hang, link.report_failure))
        return None

    def _is_stopping_together(self) -> bool:
        """Return whether the ranks that have exited did so as agreed, by `must_stop` or by JAX, so that the others may save."""
        codes = {exited.code for exited in self._group.exits}
        return self._stop.expects(codes) or (codes <= {0, SAVED} and self._step_of_jax() is not None)

    def _step_of_jax(self) -> int | None:
        """Return the step after which all ranks have to save and exit, as JAX has agreed."""
        self._records.look(now=True)
        return self._records.stopped_after

    def _stop_after_failure(self) -> None:
        self._await_cause()
        self._failure = self._describe_failure()
        self._link.report_failure(self._failure)
        self._stop_ranks()

    def _stop_by_order(self) -> None:
        order = self._link.view().order
        if order is not None and order.hung:
            self._diagnosis.log_stacks()
        self._stop_ranks()

    def _stop_ranks(self) -> None:
        self._group.stop_after_saving(self._restart_grace, lambda: self._progress.is_saving)

    def _await_cause(self) -> None:
        """Wait for the rank that is the cause: a rank that lost a peer exits at once, the peer may still be about to."""
        group, end = self._group, time.monotonic() + CAUSE_SECONDS
        while (
            group.running
            and not group.is_terminating
            and time.monotonic() < end
            and all(map(_is_victim, self._failed_exits()))
            and not self._link.must_stop()
        ):
            group.wait(POLL_SECONDS)

    def _await_shell_children(self) -> None:
        while self._group.is_terminating and self._group.has_outlasting_children():
            self._group.wait(POLL_SECONDS)

    def _report_stopped_step(self) -> None:
        """Report that the ranks stopped after the agreed step, whatever exit code they chose: their work is not done."""
        if self._group.failed:
            return
        step = self._stop.obeyed
        step = self._step_of_jax() if step is None else step
        if step is None:
            return
        text = f"the ranks exited after step {step}, as agreed; their exit code 0 counts as {SAVED}"
        message = write(Termination(Kind.SAVED, exit_code=SAVED, step=step), text)
        self._failure = Failure(SAVED, message, time.monotonic())
        self._link.report_failure(self._failure)

    def _is_of_own_ranks(self, data: Termination) -> bool:
        """Return whether a rank failed because the command, which runs once for each rank, starts its own ranks."""
        self._records.look(now=True)
        explained = data.peer_lost or data.hardware_error or data.oom_kills or data.cause not in EXPLAINED_BY_OWN_RANKS
        return data.step is None and not explained and self._records.starts_own_ranks

    def _completed(self, data: Termination, _cause: Exit) -> Termination:
        """Return the data of a failure with what only the supervisor knows."""
        return data._replace(cause=OWN_RANKS) if self._is_of_own_ranks(data) else data

    def _check_hidden_failure(self, *, fail: bool) -> str | None:
        """Fail this worker, or return its termination message, where a rank failed under the command that succeeded."""
        self._records.finish()
        failed = self._records.failed()
        if failed is None or failed.code is None:
            return None
        after, ago = self._kills.now()
        data, text = failure(failed.rank, failed.code, failed.text, self._kills.before, after, oom_age=ago)
        if not fail:
            data = data._replace(kind=Kind.HIDDEN)
        self._log(f"the command exited with code 0, but a rank failed: {summary(data)}")
        if not fail:
            return write(data, text)
        self._failure = Failure(failed.code, write(data, text), time.monotonic())
        self._link.report_failure(self._failure)
        return None

    def _failed_exits(self) -> list[Exit]:
        return [exited for exited in self._group.exits if exited.code != 0]

    def _describe_failure(self) -> Failure:
        # The first that did not only follow others: into an agreed stop, or because it lost one.
        cause = min(self._failed_exits(), key=lambda exited: (exited.code == SAVED, _is_victim(exited)))
        launcher, (after, ago), before = self._progress.launcher, self._kills.now(), self._kills.before
        rank, output = (
            (None, strip_launcher(cause.output)) if launcher else (cause.rank, strip_rank_marks(cause.output))
        )
        step = self._progress.step(cause.rank)
        if cause.code == SAVED:
            # Whatever it printed last is no reason.
            data, text = Termination(Kind.SAVED, rank=rank, exit_code=SAVED, step=step), ""
        else:
            data, text = failure(rank, cause.code, output, before, after, step, ago)
            data = self._completed(data, cause)
        # Where there is no more to say than the exit code, the kubelet takes the end of the log, standard output included.
        worth_writing = not launcher or not is_plain(data, text)
        if worth_writing:
            # Of a process that was killed nothing else would be in the log.
            self._log(_log_line(data))
        return Failure(cause.code, write(data, text), time.monotonic(), worth_writing)


def _log_line(data: Termination) -> str:
    """Return the log line of an exit: a stop with a checkpoint is no failure."""
    if data.kind is Kind.SAVED:
        return f"worker stopped with a checkpoint {summary(data)}".replace(" kind=saved", "")
    return f"worker failed {summary(data)}"


def _is_victim(exited: Exit) -> bool:
    return is_peer_loss(exited.code, exited.output)
