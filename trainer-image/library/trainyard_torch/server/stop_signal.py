"""Whether this process was asked to stop: by its agent, for all processes, or by SIGTERM."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trainyard_torch.agent import agent
from trainyard_torch.process_info import ProcessInfo
from trainyard_torch.sigterm import SigtermHandler, default_stop_timeout_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping


class StopSignal:
    """To be made by each process, servers too: where there is an agent, all have to ask it.

    Args:
        environ: the environment, as the launcher has set it.

    Raises:
        ValueError: a variable of it does not fit.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._agent = agent() if ProcessInfo.of(environ).supervised else None
        # Handlers are for the main thread alone.
        alone = self._agent is None and threading.current_thread() is threading.main_thread()
        self._sigterm = SigtermHandler(default_stop_timeout_seconds(environ)) if alone else None
        self._asked, self._answer = -1, False

    @property
    def coordinated(self) -> bool:
        """Whether an agent speaks for all: then `must_stop` is to be asked by all."""
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
        """SIGTERM does again what it did before."""
        if self._sigterm:
            self._sigterm.close()
