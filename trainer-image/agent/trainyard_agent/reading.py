"""The files in which the ranks say how far they are: made, read, and removed."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path

from trainyard_agent import processes
from trainyard_agent.hang import Hang, Usual, Watch
from trainyard_agent.report import FILE, FOLDER, STACK, Said, read
from trainyard_agent.words import KEPT

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, with a folder of our own in it
OFF = 0.0
AT_START = Said(None, "start")


class Progress:
    """The files of this worker's ranks. Use it in a `with`. Where they cannot be made, nothing is watched."""

    def __init__(
        self, limit: float | None, say: Callable[[str], None], tellers: set[int], *, launcher: bool = False
    ) -> None:
        """`limit`: seconds that a step may take; None: as `Watch` has it; 0: as long as it likes, and is measured all the same.

        `tellers`: the ranks that have told steps in an attempt before this one; until they do again, they are at their start. Those of this
        one are added. `launcher`: the ranks are started by another program, and known by what they say.
        """
        self._say, self.launcher = say, launcher
        self._watch: Watch | None = Watch(math.inf if limit == OFF else limit)
        self._tellers = tellers
        self._folder: Path | None = None
        self._nonsense: set[int] = set()
        self._told: set[int] = set()
        """The ranks that have told steps in this attempt."""
        self._looked_at = 0.0
        self.usual: Mapping[int, Usual] = {}
        """What the steps of each rank take as a rule, as last looked at."""

    def __enter__(self) -> Progress:  # noqa: PYI034 - Self needs Python 3.11
        try:
            self._folder = _folder()
        except OSError as error:
            self._watch = None
            self._say(f"hangs are not noticed: no file can be made for the ranks' progress: {error}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def folder(self) -> Path | None:
        """Where they are; None where they cannot be made."""
        return self._folder

    @property
    def interval(self) -> float | None:
        """How often to look, in seconds; None: never."""
        return self._watch.interval if self._watch else None

    def variables(self, rank: int) -> dict[str, str]:
        """What a rank needs to tell how far it is."""
        if self._folder is None:
            return {}
        return {FOLDER: str(self._folder)} if self.launcher else {FILE: str(self._folder / str(rank))}

    def look(self, running: Iterable[int]) -> Hang | None:
        """The one of the ranks that hangs, if one does. `running`: those that were started and have not ended."""
        now = time.monotonic()
        if self._watch is None or now - self._looked_at < self._watch.interval / 2:
            return None
        self._looked_at = now
        self._keep()
        ranks = self._known() if self.launcher else [*running]
        said = self.said(ranks)
        silent = self._tellers if self.launcher and not said else self._tellers.intersection(ranks) - said.keys()
        # Of these, the files are gone: who has removed them is not at its start.
        silent = silent - self._told
        self._told.update(rank for rank, words in said.items() if words.step is not None)
        self._tellers |= self._told
        if self.launcher:
            # One that has ended needs no more steps, and its launcher may go on with the others.
            said = {rank: words for rank, words in said.items() if words.pid and processes.lives(words.pid)}
        hang = self._watch.look({**dict.fromkeys(silent, AT_START), **said}, now)
        self.usual = self._watch.usual
        return hang

    def said(self, ranks: Iterable[int]) -> dict[int, Said]:
        """What these ranks have told last."""
        return {rank: words for rank in ranks if (words := self._read(rank))}

    def step(self, rank: int) -> int | None:
        """The last step that a rank has told of; below a launcher, the one that all have."""
        said = self.said(self._known() if self.launcher else [rank])
        return min((words.step for words in said.values() if words.step is not None), default=None)

    def stacks(self) -> dict[int, str]:
        """What the ranks that tell their progress have written of where they stand."""
        texts = {rank: self._tail(f"{rank}{STACK}") for rank in self._known()}
        return {rank: text for rank, text in texts.items() if text}

    def silent(self, stands: Container[int]) -> dict[int, list[str]]:
        """Why those ranks do not say where they stand that are not free to: in place of the frames of a stack. `stands`: those that do."""
        pids = {rank: words.pid for rank, words in self.said(self._known()).items() if rank not in stands}
        return {rank: [why] for rank, pid in pids.items() if pid and (why := processes.silence(pid))}

    def _keep(self) -> None:
        """A program may clear the memory that it shares with itself alone, as it thinks: the ranks write into new files then."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o700)

    def _known(self) -> list[int]:
        """The ranks of which there are files."""
        try:
            names = [file.name for file in self._folder.iterdir()] if self._folder is not None else []
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 10)

    def _tail(self, name: str) -> str:
        try:
            return Path(f"{self._folder}/{name}").read_bytes()[-KEPT:].decode(errors="replace")
        except OSError:
            return ""

    def _read(self, rank: int) -> Said | None:
        if self._folder is None:
            return None
        try:
            return read(f"{self._folder}/{rank}")
        except ValueError as error:
            if rank not in self._nonsense:
                self._nonsense.add(rank)
                self._say(f"the progress of rank {rank} cannot be read: {error}")
            return None


def shared(environment: Mapping[str, str]) -> dict[str, str]:
    """What every program gets beside its own variables: `trainyard_agent` to import, and stacks when it is asked where it stands."""
    # Last, so that nothing of the program's own is hidden by it.
    paths = [path for path in (environment.get("PYTHONPATH"), str(Path(__file__).resolve().parents[1])) if path]
    return {"PYTHONPATH": ":".join(paths), "PYTHONFAULTHANDLER": environment.get("PYTHONFAULTHANDLER", "1")}


def _folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="trainyard-", dir=IN_MEMORY))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="trainyard-"))
