"""Restart this container in its pod: it exits with a code at which its node restarts it, and leaves a mark for the next container.

The pod's variables are those of the attempt for which it was made. Without the mark the next container would start that attempt.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from trainyard_agent.owned_folders import write_own
from trainyard_agent.progress_files import IN_MEMORY
from trainyard_agent.ranks import MAX_ATTEMPTS

RESTART_CODE = 88
MARK_CHARACTERS = 20


class ContainerRestart:
    """The mark between two containers. `attempt` is the one for which this container was restarted; None for the first of its pod."""

    def __init__(self, environment: Mapping[str, str], log: Callable[[str], None], folder: Path = IN_MEMORY) -> None:
        """`folder`: one that outlives the container. A mark that is there is removed."""
        names = ("TRAINYARD_JOB_UID", "TRAINYARD_ATTEMPT", "TRAINYARD_REPLICA_INDEX")
        # Where the folder is the node's, other workers leave their marks there too.
        self._mark = folder / "-".join(["trainyard-restart", *(environment.get(name, "") for name in names)])
        self._log = log
        self._can_mark = bool(environment.get("TRAINYARD_COORDINATOR")) and os.path.ismount(folder)
        self.attempt = self._take() if self._can_mark else None

    def leave_mark(self, attempt: int) -> bool:
        """Leave the mark that the next container belongs to this attempt. Returns whether that was possible."""
        why = self._write(attempt) if self._can_mark else f"{self._mark.parent} does not outlive the container"
        if why:
            self._log(f"restarting processes instead of the container: {why}")
        return not why

    def _write(self, attempt: int) -> str:
        """Write the mark. Returns why that is not possible, or an empty string."""
        try:
            # What is there is no mark of ours: it was taken at the start.
            write_own(self._mark, str(attempt).encode(), 0o600)
        except OSError as error:
            with suppress(OSError):
                self._mark.unlink()
            return f"cannot write {self._mark}: {error.strerror}"
        return ""

    def _take(self) -> int | None:
        try:
            # Without waiting, should somebody have put a pipe there.
            file = os.open(self._mark, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                found = os.fstat(file)
                ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
                text = os.read(file, MARK_CHARACTERS).decode(errors="replace") if ours else ""
            finally:
                os.close(file)
                self._mark.unlink()
        except OSError:
            return None
        known = text.isascii() and text.isdecimal() and len(text) < MARK_CHARACTERS and 1 <= int(text) <= MAX_ATTEMPTS
        return int(text) if known else None
