"""Keep NCCL's flight recorder, which tells what the collectives of each rank were doing, where ranks hang. Without NCCL there is none.

torch makes a pipe for each rank, named by a variable and the rank. Soon after something was written into it, the rank writes a file, named by
another variable and the rank (ProcessGroupNCCL.cpp and FlightRecorder.cpp of torch 2.6).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from trainyard_agent.owned_folders import empty, opened
from trainyard_agent.progress_files import IN_MEMORY
from trainyard_agent.ranks import Place
from trainyard_agent.report import peek

FOLDER_VARIABLE = "TRAINYARD_FLIGHT_RECORDER"
"""The variable that names the folder for the files of all jobs: on a volume, if they are to outlast the container."""
FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The variables for the prefix of a rank's file. Newer releases of torch read the first, and else the second."""
PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
"""The variable for the prefix of a rank's pipe; the rank and `.pipe` follow."""
PIPE_SUFFIX = ".pipe"
FILE_PREFIX = "rank_"
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
DEFAULTS = ((SIZE_VARIABLES, "2000"), (("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1"))
"""Turn the recorder on, also for collectives that exceed NCCL's own timeout. Of two names for one setting a user sets one."""
KEPT_ATTEMPTS = 3
"""Of a job, whose files are kept."""
MAX_NAMED_RANKS = 16
END = b"."
"""The last byte of a whole file: torch writes a pickle, which ends with this instruction."""
SETTLED_SECONDS = 1.0
"""After so long without growth, a file with another end counts as whole, too: of a format that is not known here."""
TEMPORARY = Path("/tmp")  # noqa: S108 - a folder of our own in it, by a name that people find


class Stamp(NamedTuple):
    """Identifies the content of a file: changes when it is written."""

    time: int
    size: int


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what is set for all programs, the same in each attempt, where nothing is set by hand."""
    unset = ((names, value) for names, value in DEFAULTS if not any(name in environment for name in names))
    return {name: value for names, value in unset for name in names}


class Recorder:
    """The flight recorders of one attempt's ranks. Use it in a `with`. Where its folders cannot be made, it does nothing."""

    def __init__(
        self,
        environment: Mapping[str, str],
        where: Place,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._ranks, self._attempt, self._log = where.ranks, where.attempt, log
        # On a volume that several namespaces share there may be another job of that name.
        names = (environment.get("TRAINYARD_JOB_NAME") or "job", environment.get("TRAINYARD_JOB_UID", "")[:8])
        self._job = "-".join(filter(None, names)).replace("/", "-")
        self._requested_folder = environment.get(FOLDER_VARIABLE)
        self._files = next((environment[name] for name in FILE_VARIABLES if environment.get(name)), "")
        self._pipes = environment.get(PIPE_VARIABLE, "")
        self.variables: dict[str, str] = {}
        """For the ranks: the variables that are not set by hand."""
        self._base: Path | None = None
        """The folder for all jobs, if this recorder has chosen where the files go."""
        self._names = [f"flight-recorder-{self._job}", str(where.attempt)]
        self._own_pipes: Path | None = None
        """The folder that this recorder has made for the pipes."""
        self._at_start: Mapping[int, Stamp] = {}
        self._asked: Mapping[int, Stamp | None] = {}
        self._seen: dict[int, tuple[Stamp, float]] = {}
        """The files as last looked at, and when they were first seen so."""
        self._done = False

    def __enter__(self) -> Recorder:  # noqa: PYI034 - Self needs Python 3.11
        if not self._files and (folder := self._folder()):
            self._files = f"{folder}/{FILE_PREFIX}"
            self.variables.update(dict.fromkeys(FILE_VARIABLES, self._files))
        if self._files and not self._pipes:
            with contextlib.suppress(OSError):
                pipes = Path(tempfile.mkdtemp(prefix="trainyard-pipes-", dir=IN_MEMORY))
                self._own_pipes = pipes
                self._pipes = self.variables[PIPE_VARIABLE] = f"{pipes}/"
                with opened(IN_MEMORY, [pipes.name], make=True):
                    pass
        self._at_start = self._written()
        return self

    def __exit__(self, *_: object) -> None:
        if self._own_pipes is not None:
            shutil.rmtree(self._own_pipes, ignore_errors=True)
        if self._base is not None and (self._done or not self._requested_folder):
            # Usually they are empty; others stay.
            with contextlib.suppress(OSError):
                with opened(self._base, self._names[:1]) as job:
                    os.rmdir(self._names[1], dir_fd=job)
                with opened(self._base, ()) as base:
                    os.rmdir(self._names[0], dir_fd=base)

    def finish(self) -> None:
        """Note that the ranks have done their work. Otherwise ranks of other workers may be about to write beside ours."""
        self._done = True

    def keep(self) -> None:
        """Make the folders again where they were removed: by a program that cleaned up, or by another worker that was done."""
        bases = [(self._base, self._names)] if self._base is not None else []
        if self._own_pipes is not None:
            bases.append((IN_MEMORY, [self._own_pipes.name]))
        for base, names in bases:
            with contextlib.suppress(OSError), opened(base, names, make=True):
                pass

    def ask(self) -> bool:
        """Ask all ranks that have a recorder to write it. Returns whether there is any."""
        before = self._written()
        self._asked = {
            rank: before.get(rank) for rank in self._known_ranks() if _poke(f"{self._pipes}{rank}{PIPE_SUFFIX}")
        }
        return bool(self._asked)

    def answered(self) -> bool:
        """Return whether all have: their files are whole, and have not grown since the last call.

        A large file is written for longer than a look takes, and the ranks are killed as soon as all have answered.
        """
        written, now = self._written(), self._clock()
        unchanged = {rank for rank, stamp in written.items() if rank in self._seen and self._seen[rank][0] == stamp}
        self._seen.update({rank: (stamp, now) for rank, stamp in written.items() if rank not in unchanged})
        return all(
            rank in unchanged and written[rank] != before and self._is_whole(rank, now)
            for rank, before in self._asked.items()
        )

    def _is_whole(self, rank: int, now: float) -> bool:
        return now - self._seen[rank][1] >= SETTLED_SECONDS or peek(f"{self._files}{rank}", _last_byte) == END

    def summary(self) -> str:
        """Return where the files of this attempt are; empty where there are none."""
        ours = {*self._ranks, *self._known_ranks()}
        ranks = [
            rank
            for rank, stamp in sorted(self._written().items())
            if rank in ours and stamp != self._at_start.get(rank)
        ]
        if not ranks:
            return ""
        names = ", ".join(map(str, ranks)) if len(ranks) <= MAX_NAMED_RANKS else f"{ranks[0]} to {ranks[-1]}"
        return f"flight recorder of rank{'s' if len(ranks) > 1 else ''} {names} kept in {Path(self._files).parent}"

    def _known_ranks(self) -> list[int]:
        """Return the ranks that may have a pipe: in our own folder those that do, whichever a launcher has started here."""
        if PIPE_VARIABLE not in self.variables:
            return self._ranks
        return _ranks(self._pipes, PIPE_SUFFIX)

    def _written(self) -> dict[int, Stamp]:
        """Return the ranks of which there is a file that is not empty."""
        found = {}
        for rank in _ranks(self._files, "") if self._files else []:
            with contextlib.suppress(OSError):
                seen = Path(f"{self._files}{rank}").stat()
                if seen.st_size:
                    found[rank] = Stamp(seen.st_mtime_ns, seen.st_size)
        return found

    def _folder(self) -> Path | None:
        """Return the folder for the files of this attempt, beside those of earlier attempts."""
        error: OSError | None = None
        for base in [Path(self._requested_folder)] if self._requested_folder else [TEMPORARY, IN_MEMORY]:
            try:
                with opened(base, self._names, make=True) as folder:
                    os.utime(folder)
            except OSError as why:  # noqa: PERF203 - two bases at most
                error = why
            else:
                with contextlib.suppress(OSError), opened(base, self._names[:1]) as job:
                    _prune(job, int(self._names[1]))
                self._base = base
                return base.joinpath(*self._names)
        if self._requested_folder:
            self._log(
                f"cannot keep the flight recorder in {self._requested_folder}, which {FOLDER_VARIABLE} names: {error}"
            )
        return None


def _last_byte(file: int) -> bytes:
    return os.pread(file, 1, max(0, os.fstat(file).st_size - 1))


def _prune(job: int, current: int) -> None:
    """Remove the files of earlier attempts, but for the newest that are not empty. `job`: the descriptor of the job's folder."""
    attempts = {}
    for name in os.listdir(job):
        state = os.stat(name, dir_fd=job, follow_symlinks=False)
        if name.isascii() and name.isdecimal() and stat.S_ISDIR(state.st_mode):
            attempts[name] = state.st_mtime_ns
    for name in [each for each in attempts if int(each) < current]:
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=job)
            del attempts[name]
    for name in sorted(attempts, key=attempts.__getitem__)[:-KEPT_ATTEMPTS]:
        with contextlib.suppress(OSError):
            empty(job, name, FILE_PREFIX)


def _ranks(prefix: str, suffix: str) -> list[int]:
    """Return the ranks of which there is a file with this prefix and suffix."""
    folder, _, prefix = prefix.rpartition("/")
    try:
        names = [each.name for each in Path(folder or ".").iterdir()]
    except OSError:
        return []
    found = [
        name[len(prefix) : len(name) - len(suffix)]
        for name in names
        if name.startswith(prefix) and name.endswith(suffix)
    ]
    return sorted(int(rank) for rank in found if rank.isascii() and rank.isdecimal() and len(rank) < 10)


def _poke(path: str) -> bool:
    """Write into a pipe, if it is one with a reader."""
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(pipe).st_mode) and os.write(pipe, b"dump\n") > 0
    except OSError:
        return False
    finally:
        os.close(pipe)
