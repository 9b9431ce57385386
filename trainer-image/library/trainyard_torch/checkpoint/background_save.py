"""One asynchronous save: a background thread writes the checkpoint, with a time limit."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.api import CheckpointException

from trainyard_torch.checkpoint.communicator import RankFailedError
from trainyard_torch.checkpoint.history import StaleAttemptError
from trainyard_torch.checkpoint.loader import reason
from trainyard_torch.checkpoint.outcome import Outcome
from trainyard_torch.checkpoint.store import Store, StoreError
from trainyard_torch.checkpoint.timeouts import join_answered

if TYPE_CHECKING:
    from collections.abc import Callable

REPORTED_ERRORS = (CheckpointException, RankFailedError, StoreError)
"""Errors that all processes have received through the process group, which therefore stays usable."""


class BackgroundSave:
    """One checkpoint, from the moment when its state is copied.

    Args:
        write: writes it, in a thread. It calls `check` regularly, and sets `in_memory` and `memory_error`.
        store: the store of the checkpoint.
        seconds: the timeout after which `check` ends the save.
        give_up_seconds: seconds from now until the save is abandoned, whatever its thread does.

    Attributes:
        in_memory: whether the checkpoint is in memory.
        memory_error: why it is not.
    """

    def __init__(
        self, write: Callable[[BackgroundSave], None], store: Store, *, seconds: float, give_up_seconds: float
    ) -> None:
        self.in_memory, self.memory_error = False, ""
        self._store, self._unanswered = store, store.unanswered
        self._seconds, self._give_up_seconds = seconds, give_up_seconds
        self._began = time.monotonic()
        self._left = False
        self._answer: Future[None] = Future()
        # A new thread starts with GPU 0 as its current device; this process may use another one.
        # gpu-only: the device of the thread that saves
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        # A daemon thread: it does not keep the process alive, whatever the store does.
        self._thread = threading.Thread(target=self._run, args=(write, device), name="checkpoint", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        """Return whether the save has finished, successfully or not, or has timed out."""
        return self._answer.done() or time.monotonic() >= self._began + self._give_up_seconds

    def ended(self) -> bool:
        """Return whether the thread has ended."""
        return self._answer.done()

    def check(self) -> None:
        """Raise StoreError if the save must not continue."""
        if self._left or time.monotonic() - self._began > self._seconds:
            raise StoreError(f"it was not done after {self._seconds:g} s, and is abandoned")

    def outcome(self) -> Outcome:
        """Wait for the save, and return its outcome. After its timeout it is abandoned, and commits nothing any more."""
        rest = max(0.0, self._began + self._give_up_seconds - time.monotonic())
        if not wait([self._answer], rest).done:
            self._left = True
            return Outcome(
                wrong=f"it did not finish within {self._give_up_seconds:g} s, and is abandoned",
                silent=True,
                broken=True,
            )
        join_answered(self._thread)
        error = self._answer.exception()
        behind = str(error) if isinstance(error, StaleAttemptError) else ""
        return Outcome(
            wrong="" if error is None or behind else reason(error),
            behind=behind,
            memory_error=self.memory_error,
            in_memory=self.in_memory,
            silent=self._store.unanswered > self._unanswered,
            broken=not (error is None or behind or isinstance(error, REPORTED_ERRORS)),
        )

    def _run(self, write: Callable[[BackgroundSave], None], device: int | None) -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            write(self)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self._answer.set_exception(error)
        else:
            self._answer.set_result(None)
