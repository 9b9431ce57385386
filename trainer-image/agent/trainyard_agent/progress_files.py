"""Make, read and remove the files in which the ranks write their progress."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path

import trainyard_stacks
from trainyard_agent import processes
from trainyard_agent.exit_cause import KEPT
from trainyard_agent.hang import MIN_LIMIT_SECONDS, Hang, Usual, Watch
from trainyard_agent.report import DIR_VARIABLE, FILE_VARIABLE, RankState, peek, read
from trainyard_agent.report_file import STACK_SUFFIX

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, with a folder of our own in it
HANG_DETECTION_OFF = 0.0
CHECKPOINT_PHASE = "checkpoint"
AT_START = RankState(None, "start")


class Progress:
    """The files of this worker's ranks. Use it in a `with`. Where they cannot be made, nothing is watched."""

    def __init__(
        self,
        limit: float | None,
        log: Callable[[str], None],
        reporting_ranks: set[int],
        *,
        launcher: bool = False,
        least: float = MIN_LIMIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit`: seconds that a step may take; None: as `Watch` has it; 0: any time, and it is measured all the same.

        `reporting_ranks`: the ranks that reported steps in an earlier attempt; until they do again, they count as starting. Those
        of this attempt are added. `launcher`: the ranks are started by another program, and known by what they report.
        `least`: seconds without a step that are never too long where no limit is set.
        """
        self._log, self._clock, self.launcher = log, clock, launcher
        self._watch: Watch | None = Watch(math.inf if limit == HANG_DETECTION_OFF else limit, least)
        self._reporting_ranks = reporting_ranks
        self._folder: Path | None = None
        self._malformed: set[int] = set()
        self._reported: set[int] = set()
        """The ranks that have reported steps in this attempt."""
        self._looked_at = 0.0
        self.usual: Mapping[int, Usual] = {}
        """The usual step time of each rank, as last looked at."""

    def __enter__(self) -> Progress:  # noqa: PYI034 - Self needs Python 3.11
        try:
            self._folder = _make_folder()
        except OSError as error:
            self._watch = None
            self._log(f"disabled hang detection: cannot make files for the ranks' progress: {error}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def folder(self) -> Path | None:
        """Where the files are; None where they cannot be made."""
        return self._folder

    @property
    def interval(self) -> float | None:
        """How often to look, in seconds; None: never."""
        return self._watch.interval if self._watch else None

    def variables(self, rank: int) -> dict[str, str]:
        """Return what a rank needs in its environment to report its progress."""
        if self._folder is None:
            return {}
        return {DIR_VARIABLE: str(self._folder)} if self.launcher else {FILE_VARIABLE: str(self._folder / str(rank))}

    def find_hang(self, running: Iterable[int]) -> Hang | None:
        """Return the rank that hangs, if one does. `running`: the ranks that were started and have not exited."""
        now = self._clock()
        if self._watch is None or now - self._looked_at < self._watch.interval / 2:
            return None
        self._looked_at = now
        self._restore_folder()
        ranks = self._known_ranks() if self.launcher else [*running]
        states = self.read_all(ranks)
        silent = (
            self._reporting_ranks
            if self.launcher and not states
            else self._reporting_ranks.intersection(ranks) - states.keys()
        )
        # Of these, the files are gone: a rank whose files were removed is not at its start.
        silent = silent - self._reported
        self._reported.update(rank for rank, state in states.items() if state.step is not None)
        self._reporting_ranks |= self._reported
        if self.launcher:
            # One that has exited needs no more steps, and its launcher may go on with the others.
            states = {rank: state for rank, state in states.items() if state.pid and processes.is_alive(state.pid)}
        hang = self._watch.update({**dict.fromkeys(silent, AT_START), **states}, now)
        self.usual = self._watch.usual
        return hang

    def read_all(self, ranks: Iterable[int]) -> dict[int, RankState]:
        """Return what these ranks have reported last."""
        return {rank: state for rank in ranks if (state := self._read(rank))}

    def step(self, rank: int) -> int | None:
        """Return the last step that a rank has reported; below a launcher, the one that all ranks have completed."""
        states = self.read_all(self._known_ranks() if self.launcher else [rank])
        return min((state.step for state in states.values() if state.step is not None), default=None)

    @property
    def is_saving(self) -> bool:
        """Whether a rank has reported that it writes a checkpoint."""
        return any(state.phase == CHECKPOINT_PHASE for state in self.read_all(self._known_ranks()).values())

    def stacks(self) -> dict[int, str]:
        """Return what the ranks that report progress have written of where they are."""
        texts = {rank: self._tail(f"{rank}{STACK_SUFFIX}") for rank in self._known_ranks()}
        return {rank: text for rank, text in texts.items() if text}

    @property
    def is_reported(self) -> bool:
        """Whether a rank of this attempt has reported anything."""
        return bool(self._reported or self.read_all(self._known_ranks()))

    def traces(self) -> dict[int, str]:
        """Return what the ranks have written since `forget_traces`, whether they report progress or not."""
        return self._traces("")

    def program_traces(self) -> dict[int, str]:
        """Return the same of programs without a rank, by their process ID."""
        return self._traces(trainyard_stacks.PROGRAM_PREFIX)

    def forget_traces(self) -> None:
        """Empty the files in which ranks and programs write their stacks on request."""
        for prefix in ("", trainyard_stacks.PROGRAM_PREFIX):
            for number in self._files(trainyard_stacks.SUFFIX, prefix):
                with contextlib.suppress(OSError):
                    os.truncate(f"{self._folder}/{prefix}{number}{trainyard_stacks.SUFFIX}", 0)

    def blocked(self, answered: Container[int]) -> dict[int, str]:
        """Return why those ranks write no stack that cannot: `stopped` or `uninterruptible`. `answered`: those that do."""
        pids = {rank: state.pid for rank, state in self.read_all(self._known_ranks()).items() if rank not in answered}
        return {rank: why for rank, pid in pids.items() if pid and (why := processes.blocked(pid))}

    def _restore_folder(self) -> None:
        """Make the folder again: a program may clear the memory that it believes to be its own, and ranks then write new files."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o700)

    def _known_ranks(self) -> list[int]:
        """Return the ranks of which there are files."""
        return self._files("")

    def _files(self, suffix: str, prefix: str = "") -> list[int]:
        """Return the ranks, or the processes, that have a file with this suffix."""
        try:
            names = [file.name for file in self._folder.iterdir()] if self._folder is not None else []
        except OSError:
            return []
        ranks = [
            name[len(prefix) : len(name) - len(suffix)]
            for name in names
            if name.startswith(prefix) and name.endswith(suffix)
        ]
        return sorted(int(rank) for rank in ranks if rank.isascii() and rank.isdecimal() and len(rank) < 10)

    def _traces(self, prefix: str) -> dict[int, str]:
        suffix = trainyard_stacks.SUFFIX
        texts = {number: self._tail(f"{prefix}{number}{suffix}") for number in self._files(suffix, prefix)}
        return {number: text for number, text in texts.items() if text}

    def _tail(self, name: str) -> str:
        return peek(f"{self._folder}/{name}", _last_bytes).decode(errors="replace")

    def _read(self, rank: int) -> RankState | None:
        if self._folder is None:
            return None
        try:
            return read(f"{self._folder}/{rank}")
        except ValueError as error:
            if rank not in self._malformed:
                self._malformed.add(rank)
                self._log(f"cannot read the progress of rank {rank}: {error}")
            return None


def _last_bytes(file: int) -> bytes:
    return os.pread(file, KEPT, max(0, os.fstat(file).st_size - KEPT))


def shared_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what each program gets beside its own variables: `trainyard_agent` to import, and stacks when it is asked for them."""
    # Last, so that nothing of the program's own is hidden by it.
    paths = [path for path in (environment.get("PYTHONPATH"), str(Path(__file__).resolve().parents[1])) if path]
    return {"PYTHONPATH": ":".join(paths), "PYTHONFAULTHANDLER": environment.get("PYTHONFAULTHANDLER", "1")}


def _make_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="trainyard-", dir=IN_MEMORY))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="trainyard-"))
