"""Tell the probes of this worker's container whether its program can be checked. `probe-worker.sh` reads it.

The kubelet kills a container whose liveness or startup probe fails. While a worker waits for its group, no program runs that could answer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainyard_agent.owned_folders import write_own
from trainyard_agent.progress_files import IN_MEMORY

FOLDERS = (IN_MEMORY, Path("/tmp"))  # noqa: S108 - the file's name is known to the script, and tells nothing secret
DELAY_VARIABLE = "TRAINYARD_PROBE_DELAY_SECONDS"


class ProbeState:
    """Whether probes are held, in a file. Where it cannot be written, each probe checks the program."""

    def __init__(
        self, environment: Mapping[str, str], log: Callable[[str], None], folders: Sequence[Path] = FOLDERS
    ) -> None:
        names = ("TRAINYARD_JOB_UID", "TRAINYARD_ATTEMPT", "TRAINYARD_REPLICA_INDEX")
        # Where the folder is the node's, other workers have their files there too.
        name = "-".join(["trainyard-probe", *(environment.get(each, "") for each in names)])
        self._files = [folder / name for folder in folders]
        delay = environment.get(DELAY_VARIABLE, "")
        self._delay = int(delay) if delay.isascii() and delay.isdecimal() else None
        self._log, self._held, self._lock = log, False, threading.Lock()
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """The program runs. If it was not there before, probes wait for as long as the kubelet lets a container start."""
        if self._delay is None:
            return
        if self._held and self._delay:
            self._timer = threading.Timer(self._delay, self._release)
            self._timer.daemon = True
            self._timer.start()
        else:
            self._release()

    def hold(self) -> None:
        """No program runs, or it is being stopped: every probe succeeds."""
        if self._delay is None:
            return
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if not self._held:
                self._held = True
                self._write("hold")

    def _release(self) -> None:
        with self._lock:
            # A timer that was cancelled too late.
            if self._timer is None or self._timer is threading.current_thread():
                self._timer, self._held = None, False
                self._write("check")

    def _write(self, state: str) -> None:
        for file in self._files:
            new = file.with_suffix(".new")
            with suppress(OSError):
                write_own(new, f"{state} {sys.executable}\n".encode(), 0o644)
                new.replace(file)
                return
        self._log(
            f"cannot tell probes to {state} the program: no writable folder among {', '.join(str(each.parent) for each in self._files)}"
        )
