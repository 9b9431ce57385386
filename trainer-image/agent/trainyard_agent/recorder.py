"""NCCL's flight recorder: what the collectives of each rank were doing. Asked for where ranks hang, and kept in files; without NCCL there are none.

torch makes a pipe for each rank, named by a variable and the rank. Within a second or two after something was written into it, the rank
writes a file, named by another variable and the rank (ProcessGroupNCCL.cpp and FlightRecorder.cpp of torch 2.6).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from trainyard_agent.ranks import Place
from trainyard_agent.reading import IN_MEMORY

FOLDER = "TRAINYARD_FLIGHT_RECORDER"
"""The variable that names the folder for the files of all jobs: on a volume, if they are to outlast the container."""
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""How a rank's file begins. Newer releases look for the first, and for the second where there is none."""
PIPES = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
"""How a rank's pipe begins; it ends with the rank and `.pipe`."""
PIPE = ".pipe"
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
DEFAULTS = ((SIZES, "2000"), (("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1"))
"""The recorder is on, and writes also where a collective takes too long by NCCL's own clock. Of two names for one thing a user sets one."""
KEPT = 3
"""Attempts of a job of which files are kept."""
NAMED = 16
"""Ranks that are named, where there are not too many."""
TEMPORARY = Path("/tmp")  # noqa: S108 - a folder of our own in it, by a name that people find


class Stamp(NamedTuple):
    """Of a file: another one, if it was written since."""

    time: int
    size: int


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """What is set for all programs, the same in each attempt, where nothing is set by hand."""
    unset = ((names, value) for names, value in DEFAULTS if not any(name in environment for name in names))
    return {name: value for names, value in unset for name in names}


class Recorder:
    """Of the ranks of one attempt. Use it in a `with`. Where its folders cannot be made, nothing is asked for."""

    def __init__(self, environment: Mapping[str, str], where: Place, say: Callable[[str], None]) -> None:
        self._ranks, self._attempt, self._say = where.ranks, where.attempt, say
        # On a volume that several namespaces share there may be another job of that name.
        names = (environment.get("TRAINYARD_JOB_NAME") or "job", environment.get("TRAINYARD_JOB_UID", "")[:8])
        self._job = "-".join(filter(None, names)).replace("/", "-")
        self._wished = environment.get(FOLDER)
        self._files = next((environment[name] for name in FILES if environment.get(name)), "")
        self._pipes = environment.get(PIPES, "")
        self.variables: dict[str, str] = {}
        """For the ranks: what is not set by hand."""
        self._own: list[Path] = []
        """Folders that were made: for files, then for pipes."""
        self._begun: Mapping[int, Stamp] = {}
        self._asked: Mapping[int, Stamp | None] = {}
        self._seen: Mapping[int, Stamp] = {}
        self._done = False

    def __enter__(self) -> Recorder:  # noqa: PYI034 - Self needs Python 3.11
        if not self._files and (folder := self._folder()):
            self._own.append(folder)
            self._files = f"{folder}/rank_"
            self.variables.update(dict.fromkeys(FILES, self._files))
        if self._files and not self._pipes:
            with contextlib.suppress(OSError):
                pipes = _open_to_all(Path(tempfile.mkdtemp(prefix="trainyard-pipes-", dir=IN_MEMORY)))
                self._own.append(pipes)
                self._pipes = self.variables[PIPES] = f"{pipes}/"
        self._begun = self._written()
        return self

    def __exit__(self, *_: object) -> None:
        if PIPES in self.variables:
            shutil.rmtree(self._own.pop(), ignore_errors=True)
        for folder in self._own if self._done or not self._wished else ():
            # Those in which nothing is, as a rule.
            with contextlib.suppress(OSError):
                folder.rmdir()
                folder.parent.rmdir()

    def finish(self) -> None:
        """The ranks have done their work. Else others, whose files belong beside ours, may be about to write them."""
        self._done = True

    def keep(self) -> None:
        """Make the folders anew where they were removed: by a program, with all else that it found there, or by another worker that was done."""
        for folder in self._own:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True)
                _open_to_all(folder)

    def ask(self) -> bool:
        """Have all ranks that have a recorder write it down. Whether there is any."""
        before = self._written()
        self._asked = {rank: before.get(rank) for rank in self._known() if _poke(f"{self._pipes}{rank}{PIPE}")}
        return bool(self._asked)

    def answered(self) -> bool:
        """Whether all have: their files are there, and have not grown since this was asked last."""
        last, self._seen = self._seen, self._written()
        return all(
            self._seen.get(rank) not in {None, before} and self._seen[rank] == last.get(rank)
            for rank, before in self._asked.items()
        )

    def told(self) -> str:
        """Where the files of this attempt are; nothing where there are none."""
        own = {*self._ranks, *self._known()}
        ranks = [
            rank for rank, stamp in sorted(self._written().items()) if rank in own and stamp != self._begun.get(rank)
        ]
        if not ranks:
            return ""
        names = ", ".join(map(str, ranks)) if len(ranks) <= NAMED else f"{ranks[0]} to {ranks[-1]}"
        return f"flight recorder of rank{'s' if len(ranks) > 1 else ''} {names} kept in {Path(self._files).parent}"

    def _known(self) -> list[int]:
        """The ranks that may have a pipe: in our own folder those that do, whichever a launcher has started here."""
        if PIPES not in self.variables:
            return self._ranks
        return _ranks(self._pipes, PIPE)

    def _written(self) -> dict[int, Stamp]:
        """The ranks of which there is a file with something in it."""
        found = {}
        for rank in _ranks(self._files, "") if self._files else []:
            with contextlib.suppress(OSError):
                seen = Path(f"{self._files}{rank}").stat()
                if seen.st_size:
                    found[rank] = Stamp(seen.st_mtime_ns, seen.st_size)
        return found

    def _folder(self) -> Path | None:
        """For the files of this attempt, beside those of the last that left any."""
        error: OSError | None = None
        for base in [Path(self._wished)] if self._wished else [TEMPORARY, IN_MEMORY]:
            folder = base / f"flight-recorder-{self._job}" / str(self._attempt)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                os.utime(folder)
            except OSError as why:
                error = why
            else:
                _prune(folder)
                return _open_to_all(folder)
        if self._wished:
            self._say(f"the flight recorder is not kept in {self._wished}, which {FOLDER} names: {error}")
        return None


def _open_to_all(folder: Path) -> Path:
    """A program may run as another user than the agent, and torch ends a rank that cannot make its pipe."""
    with contextlib.suppress(OSError):
        folder.chmod(0o1777)
    return folder


def _prune(own: Path) -> None:
    """Remove what earlier attempts have left, but for the last that hold something."""
    with contextlib.suppress(OSError):
        attempts = [each for each in own.parent.iterdir() if each.name.isdecimal() and not each.is_symlink()]
        for folder in [each for each in attempts if int(each.name) < int(own.name)]:
            with contextlib.suppress(OSError):
                folder.rmdir()
                attempts.remove(folder)
        for folder in sorted(attempts, key=lambda each: each.stat().st_mtime_ns)[:-KEPT]:
            shutil.rmtree(folder, ignore_errors=True)


def _ranks(begin: str, end: str) -> list[int]:
    """The ranks of which there is a file of this name."""
    folder, _, begin = begin.rpartition("/")
    try:
        names = [each.name for each in Path(folder or ".").iterdir()]
    except OSError:
        return []
    found = [name[len(begin) : len(name) - len(end)] for name in names if name.startswith(begin) and name.endswith(end)]
    return sorted(int(rank) for rank in found if rank.isascii() and rank.isdecimal() and len(rank) < 10)


def _poke(path: str) -> bool:
    """Write into a pipe, if it is one at which somebody listens."""
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
