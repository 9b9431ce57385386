"""A checkpoint on its way: a thread beside the training writes it, and it is waited for so long and no longer."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.api import CheckpointException

from trainyard_torch.checkpoint.history import LeftBehindError
from trainyard_torch.checkpoint.outcome import Outcome
from trainyard_torch.checkpoint.ranks import FailedElsewhereError
from trainyard_torch.checkpoint.restoring import reason
from trainyard_torch.checkpoint.store import Store, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

TOLD = (CheckpointException, FailedElsewhereError, StoreError)
"""What all processes have heard of, by the process group: it is as good as before."""


class Saving:
    """One checkpoint, from the moment when its state is copied.

    Args:
        write: does it, in a thread; asks `check` now and then, and sets `remembered` and `forgotten`.
        store: where it goes.
        seconds: in which it is to be done, or `check` ends it.
        patience: seconds from now on until nobody waits for it any more, whatever its thread does.

    Attributes:
        remembered: whether it is in memory.
        forgotten: why it is not.
    """

    def __init__(self, write: Callable[[Saving], None], store: Store, *, seconds: float, patience: float) -> None:
        self.remembered, self.forgotten = False, ""
        self._store, self._unanswered = store, store.unanswered
        self._seconds, self._patience = seconds, patience
        self._began = time.monotonic()
        self._left = False
        self._answer: Future[None] = Future()
        # A thread begins with GPU 0, where this process may have another one.
        # gpu-only: the device of the thread that saves
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        # It does not keep the process alive, whatever the store does.
        threading.Thread(target=self._run, args=(write, device), name="checkpoint", daemon=True).start()

    def done(self) -> bool:
        """Whether there is nothing more to wait for: it has come to an end, good or bad, or its time is over."""
        return self._answer.done() or time.monotonic() >= self._began + self._patience

    def ended(self) -> bool:
        """Whether its thread is gone."""
        return self._answer.done()

    def check(self) -> None:
        """Raises StoreError where it is not to go on."""
        if self._left or time.monotonic() - self._began > self._seconds:
            raise StoreError(f"it was not done after {self._seconds:g} s, and is given up")

    def outcome(self) -> Outcome:
        """What became of it. Waits for that, until its time is over; it is left behind then, and commits nothing any more."""
        rest = max(0.0, self._began + self._patience - time.monotonic())
        if not wait([self._answer], rest).done:
            self._left = True
            return Outcome(
                wrong=f"it has not come to an end after {self._patience:g} s, and is given up", silent=True, broken=True
            )
        error = self._answer.exception()
        behind = str(error) if isinstance(error, LeftBehindError) else ""
        return Outcome(
            wrong="" if error is None or behind else reason(error),
            behind=behind,
            forgotten=self.forgotten,
            remembered=self.remembered,
            silent=self._store.unanswered > self._unanswered,
            broken=not (error is None or behind or isinstance(error, TOLD)),
        )

    def _run(self, write: Callable[[Saving], None], device: int | None) -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            write(self)
        except BaseException as error:  # noqa: BLE001 - it is told where it is waited for
            self._answer.set_exception(error)
        else:
            self._answer.set_result(None)
