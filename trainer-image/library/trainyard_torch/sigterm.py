"""Receive SIGTERM if no agent handles it for all ranks. Does not coordinate processes."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

GRACE_PERIOD = "TRAINYARD_GRACE_PERIOD_SECONDS"
DEFAULT_GRACE_PERIOD_SECONDS, MAX_GRACE_PERIOD_SECONDS = 30.0, 10**9
"""Default grace period of a Kubernetes pod, and the largest value that is accepted."""
STOP_SHARE = 2 / 3
"""Share of the grace period for finishing the step. The rest is for peers that wait for this process and for pending writes."""
EXIT_CODE = 128 + signal.SIGTERM


def default_stop_timeout_seconds(environ: Mapping[str, str]) -> float:
    """Return the seconds that a process has to finish its step after SIGTERM: two thirds of the pod's grace period.

    Args:
        environ: the environment. The operator sets TRAINYARD_GRACE_PERIOD_SECONDS to the pod's `terminationGracePeriodSeconds` if that is not 30.

    Raises:
        ValueError: the variable is not a non-negative number of seconds.
    """
    text = environ.get(GRACE_PERIOD, "").strip()
    try:
        grace = float(text) if text else DEFAULT_GRACE_PERIOD_SECONDS
    except ValueError:
        grace = math.nan
    if not 0 <= grace <= MAX_GRACE_PERIOD_SECONDS:
        raise ValueError(
            f"{GRACE_PERIOD} must be the seconds that the pod gets to end, from 0 to {MAX_GRACE_PERIOD_SECONDS}, got {text!r}"
        )
    return grace * STOP_SHARE


class SigtermHandler:
    """Listens for SIGTERM. Create it in the main thread. Training continues until its current step ends.

    Args:
        stop_timeout_seconds: the time limit for that step. A process that is blocked in a library call cannot finish it: it is then
            terminated with exit code 143, as without a handler.

    Raises:
        ValueError: this is not the main thread.
    """

    def __init__(self, stop_timeout_seconds: float) -> None:
        self._received = False
        self._acknowledged = threading.Event()
        self._before = signal.signal(signal.SIGTERM, self._note)
        here, self._there = socket.socketpair()
        self._there.setblocking(False)  # noqa: FBT003 - its only parameter
        # The handler runs between two instructions of Python. This is written at once, also while the main thread is blocked.
        self._usual = signal.set_wakeup_fd(self._there.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._watch, args=(here, stop_timeout_seconds), name="notice", daemon=True).start()

    @property
    def received(self) -> bool:
        """Return whether SIGTERM was received."""
        return self._received

    def acknowledge(self) -> None:
        """Cancel the time limit: the step has finished."""
        self._acknowledged.set()

    def close(self) -> None:
        """Restore the previous handler of SIGTERM."""
        self._acknowledged.set()
        signal.set_wakeup_fd(self._usual)
        signal.signal(signal.SIGTERM, self._before)
        self._there.close()

    def _forget(self) -> None:
        """In a forked child, restore the default action: SIGTERM must end the child."""
        if not self._acknowledged.is_set():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _note(self, _: int, __: FrameType | None) -> None:
        self._received = True

    def _watch(self, here: socket.socket, stop_timeout_seconds: float) -> None:
        with here:
            while (received := here.recv(1)) != bytes([signal.SIGTERM]):
                if not received:
                    return
            if not self._acknowledged.wait(stop_timeout_seconds):
                os._exit(EXIT_CODE)
