"""Supervise a worker of an MPI job: its launcher or the daemons of MPI, and the ranks below them.

The exit code of a launcher proves little: `mpirun` exits with 0 when a daemon was killed, and MPICH's launcher never exits then. So a rank or
daemon that fails ends the attempt at once, and a launcher has succeeded only if all daemons have. Nor does a script prove anything that
exits while its launcher still runs.
"""

from __future__ import annotations

import os
import time
from typing import Any

from trainyard_agent import processes
from trainyard_agent.exit_cause import PEER_LOST_CODE
from trainyard_agent.group import Exit
from trainyard_agent.operator_link import Failure
from trainyard_agent.peers import Peers, Verdict
from trainyard_agent.rank_record_file import RankRecord
from trainyard_agent.remote_starts import RemoteStarts
from trainyard_agent.stopping import SAVED
from trainyard_agent.supervisor import POLL_SECONDS, Result, Supervisor
from trainyard_agent.termination_message import SIGNAL_BASE, Kind, Termination, failure, summary, write

LOOK_SECONDS = 1.0
CONFIRM_SECONDS = 15.0
"""For which daemons may run on after their launcher has succeeded."""
START_CODES = frozenset({126, 127})
"""Of a daemon that cannot be started: its program or a library of it is missing."""
LAUNCHERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
"""The names of their processes."""
LEFT_SECONDS, LEFT_CODE = 2.0, 1
"""For which processes may run on after the command, and the exit code of a worker in which a launcher does so for longer."""
LOST_CODE = 14
"""MPI_ERR_UNKNOWN, with which Open MPI ends a rank that lost another rank or its daemon."""


class MpiSupervisor(Supervisor):
    """Supervises one attempt of an MPI job in one worker."""

    def __init__(self, *parts: Any, remote: RemoteStarts | None, peers: Peers | None) -> None:
        """`remote`: starts daemons here; None in a job of one worker. `peers`: the other workers, of a launcher; else None."""
        super().__init__(*parts)
        self._remote, self._peers = remote, peers
        self._looked_at, self._exits_seen = float("-inf"), 0
        if remote is not None:
            remote.has_failed = self._has_failed

    def run(self, restart_grace: float, *, fail_hidden: bool = True) -> Result:  # type: ignore[explicit-override]  # no typing_extensions here
        """Supervise until the launcher has ended, or the daemons that it has started here. A failed rank always counts."""
        result = super().run(restart_grace, fail_hidden=fail_hidden)
        if result.failure is not None or result.stopped:
            return result
        if self._is_server and not (self._remote and self._remote.is_finished):
            # This worker was asked to exit before the launcher had ended.
            return Result(stopped=True)
        if self._is_server or self._group.is_terminating:
            return result
        if left := self._left_launcher():
            return self._fail(LEFT_CODE, f"{left} still runs; let the command wait for it")
        return result if self._peers is None else self._confirm(self._peers)

    @property
    def _is_server(self) -> bool:
        return self._remote is not None and self._peers is None

    @property
    def _has_work(self) -> bool:  # type: ignore[explicit-override]  # no typing_extensions here
        if self._failure is not None:
            return False
        serves = self._is_server and self._remote is not None and not self._remote.is_finished
        return bool(self._group.running) or (serves and not self._group.is_terminating)

    def _observe(self) -> None:  # type: ignore[explicit-override]  # no typing_extensions here
        super()._observe()
        if self._remote is not None:
            self._remote.look()

    def _act(self) -> Result | None:  # type: ignore[explicit-override]  # no typing_extensions here
        failed = None if self._group.failed else self._find_failed_rank()
        if failed is None:
            return super()._act()
        self._failure = self._describe_rank(failed)
        self._link.report_failure(self._failure)
        self._stop_ranks()
        return Result(self._failure)

    def _has_failed(self) -> bool:
        return self._failure is not None or self._group.failed or self._find_failed_rank(now=True) is not None

    def _find_failed_rank(self, *, now: bool = False) -> RankRecord | None:
        """Return the rank of this worker that failed first. Looks once a second, and when a rank has exited. `now`: in any case."""
        time_now, exits = time.monotonic(), self._records.exits_seen
        has_news = now or exits != self._exits_seen
        if time_now - self._looked_at < LOOK_SECONDS and not has_news:
            return None
        self._looked_at, self._exits_seen = time_now, exits
        # A rank writes its exception into its record before it exits.
        self._records.look(now=has_news)
        found = self._records.failed()
        return None if found is None or found.code in {None, SAVED} else found

    def _describe_rank(self, failed: RankRecord) -> Failure:
        code, (after, ago) = failed.code or 1, self._kills.now()
        step = self._progress.step(failed.rank or 0)
        data, text = failure(failed.rank, code, failed.text, self._kills.before, after, step, ago)
        if code == LOST_CODE and not data.exception:
            data = data._replace(peer_lost=True)
        self._log(f"worker failed {summary(data)}")
        # A program may write any time into its record.
        return Failure(code, write(data, text), min(failed.at or time.monotonic(), time.monotonic()))

    def _describe_failure(self) -> Failure:  # type: ignore[explicit-override]  # no typing_extensions here
        failed = self._find_failed_rank(now=True)
        return super()._describe_failure() if failed is None else self._describe_rank(failed)

    def _completed(self, data: Termination, cause: Exit) -> Termination:  # type: ignore[explicit-override]  # no typing_extensions here
        """Mark a failure that follows from another worker's: of a daemon that lost its launcher, or of a launcher."""
        data = super()._completed(data, cause)
        if cause.code in START_CODES or data.oom_kills:
            return data
        if self._remote is None:
            # The only worker follows no other one.
            return data
        if self._peers is not None:
            follows = self._peers.ask(self._group).verdict is Verdict.FAILED
        else:
            follows = cause.pid in self._remote.lost or cause.code < SIGNAL_BASE
        return data._replace(peer_lost=True) if follows else data

    def _left_launcher(self) -> str:
        """Return the name of a launcher that runs on although the command has exited; empty where there is none."""
        end = time.monotonic() + LEFT_SECONDS
        while not self._group.is_terminating:
            table = processes.processes_by_pid()
            below = processes.descendants(os.getpid(), self._group.protected, table)
            # What a shell has just forked has the shell's name for a moment.
            if not below or time.monotonic() >= end:
                return min(LAUNCHERS.intersection(table[pid].name for pid in below), default="")
            self._group.wait(POLL_SECONDS)
        return ""

    def _confirm(self, peers: Peers) -> Result:
        """Wait until the daemons in all other workers have exited, and have these workers end."""
        end, why = time.monotonic() + CONFIRM_SECONDS, ""
        while not self._group.is_terminating:
            if self._link.must_stop():
                return Result(stopped=True)
            answer = peers.ask(self._group)
            if answer.verdict is Verdict.SUCCEEDED:
                answer = peers.finish(self._group)
            if answer.verdict is Verdict.SUCCEEDED:
                return Result()
            if answer.verdict is Verdict.FAILED or time.monotonic() >= end:
                why = answer.why
                break
            self._group.wait(POLL_SECONDS)
        if not why:
            return Result(stopped=True)
        return self._fail(PEER_LOST_CODE, why, peer_lost=True)

    def _fail(self, code: int, why: str, *, peer_lost: bool = False) -> Result:
        """Report that the attempt has failed here with this code, although the command has exited with 0.

        `peer_lost`: because of another worker.
        """
        self._log(f"the command exited with code 0, but {why}")
        data = Termination(Kind.FAILED, exit_code=0, peer_lost=peer_lost)
        self._failure = Failure(code, write(data, why), time.monotonic())
        self._link.report_failure(self._failure)
        return Result(self._failure)
