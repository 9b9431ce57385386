"""How this container starts anew in its pod: it ends with an exit code at which its node starts it again, and leaves a mark by which the next one knows.

The pod's variables are those of the attempt for which it was made. Without the mark the next container would take itself for the first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from trainyard_agent.ranks import MOST_ATTEMPTS
from trainyard_agent.reading import IN_MEMORY

RESTART_CODE = 88
LONGEST = 20


class Restarts:
    """`attempt` is the one for which this container was started anew; None for the first container of its pod."""

    def __init__(self, environment: Mapping[str, str], say: Callable[[str], None], folder: Path = IN_MEMORY) -> None:
        """`folder`: one that outlives the container. A mark that is there is taken away."""
        names = ("TRAINYARD_JOB_UID", "TRAINYARD_ATTEMPT", "TRAINYARD_REPLICA_INDEX")
        # Where the memory is the node's, other workers leave theirs there too.
        self._mark = folder / "-".join(["trainyard-restart", *(environment.get(name, "") for name in names)])
        self._say = say
        self._outlives = bool(environment.get("TRAINYARD_COORDINATOR")) and os.path.ismount(folder)
        self.attempt = self._take() if self._outlives else None

    def leave(self, attempt: int) -> bool:
        """The next container belongs to this attempt. Whether it will know."""
        why = self._write(attempt) if self._outlives else f"{self._mark.parent} is no place that outlives it"
        if why:
            self._say(f"the container goes on, with new processes: {why}")
        return not why

    def _write(self, attempt: int) -> str:
        """Why it cannot be; else nothing."""
        try:
            self._mark.write_text(str(attempt))
        except OSError as error:
            with suppress(OSError):
                self._mark.unlink()
            return f"{self._mark} cannot be written: {error.strerror}"
        return ""

    def _take(self) -> int | None:
        try:
            # A pipe that somebody has put there is not waited for.
            file = os.open(self._mark, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                text = os.read(file, LONGEST).decode(errors="replace")
            finally:
                os.close(file)
                self._mark.unlink()
        except OSError:
            return None
        known = text.isascii() and text.isdecimal() and len(text) < LONGEST and 1 <= int(text) <= MOST_ATTEMPTS
        return int(text) if known else None
