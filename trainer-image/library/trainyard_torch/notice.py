"""The notice that this process is to end: SIGTERM, where no agent speaks for all. Agrees on nothing."""

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

GRACE = "TRAINYARD_GRACE_PERIOD_SECONDS"
USUAL_GRACE_SECONDS, LONGEST_GRACE_SECONDS = 30.0, 10**9
"""What Kubernetes gives a pod to end where the pod does not say, and the longest that is understood."""
SHARE = 2 / 3
"""Of that: the rest is for those who wait for this process, and for what it has on its way."""
EXIT_CODE = 128 + signal.SIGTERM


def patience_seconds(environ: Mapping[str, str]) -> float:
    """How long a process may take to come to the end of its step once it was asked to end: two thirds of what its pod gets.

    Args:
        environ: the operator sets TRAINYARD_GRACE_PERIOD_SECONDS to the pod's `terminationGracePeriodSeconds` where that is not 30.

    Raises:
        ValueError: it is no number of seconds from 0 on.
    """
    text = environ.get(GRACE, "").strip()
    try:
        grace = float(text) if text else USUAL_GRACE_SECONDS
    except ValueError:
        grace = math.nan
    if not 0 <= grace <= LONGEST_GRACE_SECONDS:
        raise ValueError(
            f"{GRACE} must be the seconds that the pod gets to end, from 0 to {LONGEST_GRACE_SECONDS}, and is {text!r}"
        )
    return grace * SHARE


class Notice:
    """Waits for SIGTERM from now on; of the main thread alone. Training goes on to the end of its step.

    Args:
        patience: seconds for that. A process that waits for others in vain, deep in a library, does not come so far; it ends then as it
            would without a handler, with exit code 143.

    Raises:
        ValueError: this is not the main thread.
    """

    def __init__(self, patience: float) -> None:
        self._given = False
        self._heeded = threading.Event()
        self._before = signal.signal(signal.SIGTERM, self._note)
        here, self._there = socket.socketpair()
        self._there.setblocking(False)  # noqa: FBT003 - its only parameter
        # The handler runs between two instructions of Python; this is written at once, also while the main thread is elsewhere.
        self._usual = signal.set_wakeup_fd(self._there.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._watch, args=(here, patience), name="notice", daemon=True).start()

    @property
    def given(self) -> bool:
        """Whether it has come."""
        return self._given

    def heed(self) -> None:
        """The training has come to its end in time: from here on it takes what it needs."""
        self._heeded.set()

    def close(self) -> None:
        """SIGTERM does again what it did before."""
        self._heeded.set()
        signal.set_wakeup_fd(self._usual)
        signal.signal(signal.SIGTERM, self._before)
        self._there.close()

    def _forget(self) -> None:
        """In a process that was forked: what it is told is not for this one, and ends it."""
        if not self._heeded.is_set():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _note(self, _: int, __: FrameType | None) -> None:
        self._given = True

    def _watch(self, here: socket.socket, patience: float) -> None:
        with here:
            while (said := here.recv(1)) != bytes([signal.SIGTERM]):
                if not said:
                    return
            if not self._heeded.wait(patience):
                os._exit(EXIT_CODE)
