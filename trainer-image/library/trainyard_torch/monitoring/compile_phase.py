"""Report the phase `compile` while torch.compile works, so that the agent does not take a compilation for a hang.

A new sequence length, the last batch or the first evaluation compiles again, at any step. Callbacks of torch mark the start and the end of each
compilation, which may be part of another one. They are not public.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import Any

CALLBACKS = "torch._dynamo.callback"


class CompilePhase:
    """Reports to the agent when a compilation starts and ends. Without an agent, or with one that cannot tell its phase, it does nothing.

    Args:
        agent: the agent's package.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent if hasattr(agent, "phase") else None
        self._lock = threading.Lock()
        self._depth = 0
        self._before: str | None = None
        self._handler: Any = None
        self.is_pending = self._agent is not None
        """Whether `register` must be called again: torch has not imported its compiler yet. To import it here would take seconds."""

    def register(self) -> None:
        """Have torch call back from now on, if it has imported its compiler. Optimizers import it when the first one is made."""
        handler = getattr(sys.modules.get(CALLBACKS), "callback_handler", None)
        if handler is None or not self.is_pending:
            return
        self.is_pending = False
        if hasattr(handler, "register_start_callback") and hasattr(handler, "register_end_callback"):
            handler.register_start_callback(self.begin)
            handler.register_end_callback(self.end)
            self._handler = handler

    def close(self) -> None:
        """Have torch call back no longer."""
        self.is_pending, handler, self._handler = False, self._handler, None
        if handler is not None:
            # `torch._dynamo.reset` forgets all callbacks.
            with suppress(ValueError):
                handler.remove_start_callback(self.begin)
            with suppress(ValueError):
                handler.remove_end_callback(self.end)

    def begin(self, *_: object) -> None:
        """Report that a compilation starts. Newer releases of torch pass details. It may be called by the thread of the backward pass."""
        with self._lock:
            self._depth += 1
            if self._depth == 1 and self._agent is not None:
                # The agent does not watch a rank that reports nothing: it must not begin to, because of this.
                self._before = self._agent.phase()
                if self._before is not None:
                    self._agent.progress(phase="compile")

    def end(self, *_: object) -> None:
        """Report the phase before it, unless the program has reported another one."""
        with self._lock:
            self._depth = max(0, self._depth - 1)
            if self._depth == 0 and self._before is not None and self._agent is not None:
                before, self._before = self._before, None
                if self._agent.phase() == "compile":
                    self._agent.progress(phase=before)
