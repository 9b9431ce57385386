"""Read what the Python programs of a worker record about themselves (`sitecustomize.py`): how ranks exited, which groups they form.

A shell, a pipeline or a launcher reaps its own children, so the agent does not get their exit codes as a parent does. The kernel
reports them through a pidfd (Linux 6.15 and newer), and counts. Elsewhere, what a program records counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from signal import Signals
from typing import NamedTuple, Optional

from trainyard_agent import processes
from trainyard_agent.group import Group
from trainyard_agent.rank_record_file import Membership, RankRecord, read_record
from trainyard_agent.ranks import MAX_PROCESSES
from trainyard_agent.termination_message import SIGNAL_BASE
from trainyard_agent.unobserved_programs import UnobservedPrograms

FOLDER_VARIABLE = "TRAINYARD_RANK_RECORDS"
LOOK_SECONDS = 1.0
UNCHANGED_SECONDS = 10.0
"""Groups that have not changed for so long are final: helpers may form theirs before the ranks do."""
MAX_RECORDS = 4 * MAX_PROCESSES
"""So many programs of one attempt are looked at."""
ON_REQUEST = frozenset({128 + number for number in (Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP)})
"""The exit codes of processes that somebody has asked to exit: a launcher that stops the others, or a script that stops a server."""


class FormedGroups(NamedTuple):
    """The process groups that the programs of this worker have formed."""

    size: int
    """The ranks of the largest."""
    leaders: int
    """The processes of this worker that are rank 0 of a group of that size, at the same time or started beside each other."""


class Programs(NamedTuple):
    """What is known of the programs of a worker; None where it is not."""

    groups: Optional[FormedGroups] = None  # noqa: UP045 - Python 3.9
    torch_processes: Optional[int] = None  # noqa: UP045 - Python 3.9
    """How many have had torch loaded at the same time."""
    preflight_seconds: Optional[float] = None  # noqa: UP045 - Python 3.9
    """How long nodes were compared before they started."""


class RankRecords:
    """The records of one attempt."""

    def __init__(
        self,
        folder: Path | None,
        *,
        runs_ranks: bool = False,
        roots: Callable[[], Iterable[int]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        watcher: Group | None = None,
    ) -> None:
        """`folder`: where to make the folder of the records; None: there are none.

        `runs_ranks`: the command itself is the program of a rank, so that nothing hides how it exits.
        `roots`: gives the processes that run the command. `watcher`: notices at once that a rank exits, and not only at the next look.
        """
        self._watcher = watcher
        self._runs_ranks, self._clock = runs_ranks, clock
        self._unobserved = UnobservedPrograms(roots, MAX_RECORDS)
        self._folder = folder / "records" if folder is not None else None
        self._records: dict[int, RankRecord] = {}
        self._versions: dict[int, int] = {}
        self._pidfds: dict[int, int] = {}
        self._codes: dict[int, tuple[int, float]] = {}
        """The exit codes that the kernel has reported, and when."""
        self._gone: set[int] = set()
        """Processes that have exited with a code that the kernel does not tell."""
        self.exits_seen = 0
        """How many ranks have exited, as far as it is known."""
        self._looked_at = float("-inf")
        self._formed: FormedGroups | None = None
        self._formed_at = 0.0
        self._loading: set[int] = set()
        """The programs that have recorded since the last look that they have loaded torch."""
        self._loaded, self._loaded_at = 0, 0.0
        self._is_over = False
        if self._folder is not None:
            try:
                self._folder.mkdir(mode=0o700)
            except OSError:
                self._folder = None

    def __enter__(self) -> RankRecords:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        for pidfd in self._pidfds.values():
            self._close(pidfd)

    @property
    def variables(self) -> Mapping[str, str]:
        """What a program needs in its environment to record itself."""
        return {} if self._folder is None else {FOLDER_VARIABLE: str(self._folder)}

    def look(self, *, now: bool = False) -> None:
        """Read what is new, once a second at most. `now`: in any case."""
        time_now = self._clock()
        if self._folder is None or (time_now - self._looked_at < LOOK_SECONDS and not now):
            return
        self._looked_at = time_now
        new = self._read_changed(self._folder)
        if not self._runs_ranks:
            self._records.update(self._unobserved.look(self._versions))
        self._follow_exits(time_now)
        self._note_groups(new, time_now)
        self._note_loaded(time_now)

    def finish(self) -> None:
        """Read what is new, once the command has exited."""
        self.look(now=True)
        self._is_over = True

    @property
    def formed(self) -> FormedGroups | None:
        """The groups, once they are final."""
        return self._formed if self._is_over or self._clock() - self._formed_at >= UNCHANGED_SECONDS else None

    @property
    def torch_processes(self) -> int | None:
        """How many programs have had torch loaded at the same time, once that is final; a launcher with ranks is none.

        None where it is not known: the command is the program of a rank, or there is a program that cannot record itself.
        """
        is_final = self._is_over or self._clock() - self._loaded_at >= UNCHANGED_SECONDS
        is_known = not self._runs_ranks and self._records.keys() <= self._versions.keys()
        return self._loaded if self._loaded and is_final and is_known else None

    @property
    def stopped_after(self) -> int | None:
        """The step after which ranks have to save and exit, as JAX has agreed; None where there is none. It is the same for all."""
        steps = [each.stopped_after for each in self._records.values() if each.is_rank]
        return max((step for step in steps if step is not None), default=None)

    def failed(self) -> RankRecord | None:
        """Return the rank that failed first, and whose program has not succeeded since then."""
        last: dict[tuple[int | None, str], RankRecord] = {}
        records = sorted(map(self._with_exit, self._records.values()), key=lambda each: each.at)
        # A launcher fails because its ranks did: their exits count.
        launchers = {record.started_by for record in records if record.is_rank and record.code != 0}
        for record in records:
            is_launcher = record.rank is None and record.pid in launchers
            counts = record.is_rank and record.code not in ON_REQUEST | {None} and not self._is_handled(record)
            if counts and not is_launcher and not self._runs_ranks:
                before = last.get((record.rank, record.program))
                # Of failures in a row the first is the cause.
                if before is None or not before.code or not record.code:
                    last[record.rank, record.program] = record
        trained = {record.rank for record in last.values() if record.trains and not record.code}
        # A script tests for a module, a file or a version, installs what is missing, and ends its servers.
        failures = [
            each for each in last.values() if each.code and (each.trains or not _has_trained(each.rank, trained))
        ]
        return min(failures, key=lambda each: each.at, default=None)

    def _is_handled(self, record: RankRecord) -> bool:
        """Return whether the rank that started this process has succeeded: it runs an evaluation, or restarts its own ranks.

        A launcher without a rank may ignore how its ranks exit.
        """
        starter = self._records.get(record.started_by or 0)
        return starter is not None and starter.rank is not None and self._with_exit(starter).code == 0

    @property
    def starts_own_ranks(self) -> bool:
        """Whether several processes with a rank have each started ranks of their own with the same numbers, as mp.spawn does.

        A process that is a member of a group itself is a rank, and may have such helpers. A group of one is no training of several
        ranks: an inference engine, for example, forms one in a process of its own.
        """
        owners: dict[int, set[int]] = {}
        for record, group in self._groups_of_helpers():
            if group.size > 1:
                owners.setdefault(group.rank, set()).add(self._given_rank(record.owner))
        return any(len(each) > 1 for each in owners.values())

    def _given_rank(self, owner: int) -> int:
        """Return the rank that a process was given, or a number of its own. The stages of a script have the same rank in turn."""
        record = self._records.get(owner)
        return -owner if record is None or record.rank is None else record.rank

    def _owners_of_leaders(self, size: int) -> set[int]:
        """Return the ranks of the processes that have started rank 0 of a group of this size."""
        return {
            self._given_rank(record.owner)
            for record, group in self._groups_of_helpers()
            if group.formed and group.rank == 0 and group.size == size
        }

    def _groups_of_helpers(self) -> list[tuple[RankRecord, Membership]]:
        """Return the processes that are in a group, and were started by a process with a rank that is in none."""
        return [
            (record, record.group)
            for record in self._records.values()
            if record.group is not None and record.owner != record.pid and not self._helps_member(record)
        ]

    def _helps_member(self, record: RankRecord) -> bool:
        """Return whether a member of a group has started this process, whose group is not that of the training: it writes checkpoints."""
        owner = self._records.get(record.owner)
        return record.owner != record.pid and owner is not None and owner.group is not None

    def _read_changed(self, folder: Path) -> set[int]:
        """Read the records that are new or changed. Returns the PIDs that are new."""
        new = set[int]()
        try:
            found = [(int(entry.name), entry.stat().st_ino) for entry in os.scandir(folder) if entry.name.isdecimal()]
        except OSError:
            return new
        for pid, version in found[:MAX_RECORDS]:
            if self._versions.get(pid) == version:
                continue
            if pid not in self._versions:
                new.add(pid)
            self._versions[pid] = version
            record = read_record(folder / str(pid), pid)
            if record is not None:
                if record.loaded and not (pid in self._records and self._records[pid].loaded):
                    self._loading.add(pid)
                self._records[pid] = record
        return new

    def _follow_exits(self, now: float) -> None:
        """Ask the kernel for the exit codes of ranks."""
        for pid, record in self._records.items():
            if record.is_rank and not (pid in self._pidfds or pid in self._codes or pid in self._gone):
                pidfd = processes.open_pidfd(pid)
                if pidfd is not None:
                    self._pidfds[pid] = pidfd
                    if self._watcher is not None:
                        self._watcher.watch_file(pidfd, lambda: self._follow_exits(self._clock()))
        for pid, pidfd in [*self._pidfds.items()]:
            code = processes.exit_code_of(pidfd, pid)
            if code is not None:
                self._codes[pid] = code, now
            elif not processes.is_alive(pid):
                # An older kernel. Another process may get the number.
                self._gone.add(pid)
            else:
                continue
            self.exits_seen += 1
            self._close(self._pidfds.pop(pid))

    def _close(self, pidfd: int) -> None:
        if self._watcher is not None:
            self._watcher.unwatch_file(pidfd)
        os.close(pidfd)

    def _with_exit(self, record: RankRecord) -> RankRecord:
        """Return the record with the exit code of the kernel, where that is known. The time is the program's own, which is earlier."""
        code, at = self._codes.get(record.pid, (record.code, record.at))
        if record.text and record.code and code is not None and code > SIGNAL_BASE:
            # Its exception came first. Then it crashed while it exited, or its launcher killed it.
            code = record.code
        return record._replace(code=code, at=record.at or at)

    def _note_loaded(self, now: float) -> None:
        ranks = [record for record in self._records.values() if record.is_rank]
        there = {
            each.pid for each in ranks if each.loaded and (each.pid in self._loading or processes.is_alive(each.pid))
        }
        self._loading.clear()
        count = len(there - {each.started_by for each in ranks})
        if count > self._loaded:
            self._loaded, self._loaded_at = count, now

    def _note_groups(self, new: set[int], now: float) -> None:
        # What has come and gone between two looks counts too; what ended before does not: a restarted rank is no second one.
        there = [
            record.group
            for pid, record in self._records.items()
            if record.group is not None
            and record.group.formed
            and not self._helps_member(record)
            and (pid in new or processes.is_alive(pid))
        ]
        if not there:
            return
        size = max(group.size for group in there)
        leaders = sum(group.size == size and group.rank == 0 for group in there)
        # Programs that run once for each rank and start their own ranks form their groups one after the other, if they are short.
        seen = FormedGroups(size, max(leaders, len(self._owners_of_leaders(size))))
        if self._formed is None or seen > self._formed:
            self._formed, self._formed_at = seen, now


def _has_trained(rank: int | None, trained: Collection[int | None]) -> bool:
    """Return whether a rank is among those that have trained; of a program without a number, whether any is."""
    return bool(trained) if rank is None else rank in trained
