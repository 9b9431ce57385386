"""Detect a requested stop: by the agent, for all processes, or by SIGTERM."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trainyard_torch.agent import agent
from trainyard_torch.process_info import ProcessInfo
from trainyard_torch.sigterm import SigtermHandler, default_stop_timeout_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping


class StopSignal:
    """The stop signal of a process. Servers need it, too: with an agent, all processes must ask it.

    Args:
        environ: the environment of the launcher.

    Raises:
        ValueError: a variable is invalid.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._agent = agent() if ProcessInfo.of(environ).supervised else None
        # Only the main thread may set handlers.
        alone = self._agent is None and threading.current_thread() is threading.main_thread()
        self._sigterm = SigtermHandler(default_stop_timeout_seconds(environ)) if alone else None
        self._asked, self._answer = -1, False

    @property
    def coordinated(self) -> bool:
        """Whether the agent answers for all processes: then all must call `must_stop`."""
        return self._agent is not None

    @property
    def received(self) -> bool:
        """Return whether this process itself received SIGTERM; the others do not know of it."""
        return self._sigterm is not None and self._sigterm.received

    def must_stop(self, version: int) -> bool:
        """Return the agent's answer for this number of updates. It may block briefly while the processes agree."""
        if self._agent is not None and version > self._asked:
            self._asked, self._answer = version, bool(self._agent.must_stop(version))
        return self._answer

    def acknowledge(self) -> None:
        """Cancel the time limit: all processes know of the stop, and are finishing."""
        if self._sigterm:
            self._sigterm.acknowledge()

    def close(self) -> None:
        """Restore the previous handler of SIGTERM."""
        if self._sigterm:
            self._sigterm.close()
