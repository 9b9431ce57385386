"""Requests for a profile: by a signal, or by a file that changes (for example a pod annotation). Only detects them."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)
SIGNAL = signal.SIGUSR2
"""The agent forwards this signal, and does not use it itself."""
POLL_SECONDS = 1.0
MAX_BYTES = 1024
MAX_STEPS = 1000


class ProfileRequest(NamedTuple):
    """A request for a profile.

    Attributes:
        steps: the number of steps to profile.
        ranks: the ranks to profile; None: all.
    """

    steps: int
    ranks: frozenset[int] | None = None


def parse(text: str, steps: int) -> ProfileRequest:
    """Parse `steps=5 ranks=0,3 id=anything`. Each part is optional; the default of `steps` is an argument.

    Raises:
        ValueError: a part or its value is invalid.
    """
    ranks = None
    for word in text.split():
        name, _, value = word.partition("=")
        if name == "steps" and re.fullmatch(r"[0-9]{1,4}", value) and 1 <= int(value) <= MAX_STEPS:
            steps = int(value)
        elif name == "ranks" and re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", value):
            ranks = frozenset(map(int, value.split(",")))
        elif name != "id":
            raise ValueError(
                f"{word!r} is not valid: a request consists of steps=1 to {MAX_STEPS}, ranks=0,3 and id=anything"
            )
    return ProfileRequest(steps, ranks)


class ProfileRequests:
    """The requests that were not taken yet; several of them are taken as one.

    Args:
        steps: the default for requests without a number.
        file: the path to watch; None: none. Its initial content is ignored: an earlier attempt has seen it.
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, steps: int, file: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._file, self._clock = steps, file, clock
        self._signalled = False
        self._request: ProfileRequest | None = None
        self._looked = clock()
        self._stamp = self._stamped()
        self._text = self._read()
        self._listening = False

    def listen(self) -> None:
        """Accept SIGUSR2 as a request from now on, unless the program handles it. Only the main thread can."""
        if signal.getsignal(SIGNAL) not in {signal.SIG_DFL, signal.SIG_IGN}:
            logger.warning("no profile is made at SIGUSR2: the program handles that signal itself")
            return
        try:
            signal.signal(SIGNAL, self._on_signal)
            self._listening = True
        except ValueError:
            logger.warning("no profile is made at SIGUSR2: only a program's main thread can listen to signals")

    def close(self) -> None:
        """Accept no more requests. The signal is then ignored: its default action would terminate the process."""
        if self._listening:
            signal.signal(SIGNAL, signal.SIG_IGN)
            self._listening = False

    def take(self) -> ProfileRequest | None:
        """Return the request since the last call, if any. Call it after each step: it takes less than a microsecond."""
        now = self._clock()
        if self._file is not None and now - self._looked >= POLL_SECONDS:
            self._looked = now
            self._check_file()
        if self._signalled:
            self._signalled = False
            self._request = ProfileRequest(self._steps)
        request, self._request = self._request, None
        return request

    def _on_signal(self, *_: object) -> None:
        self._signalled = True

    def _check_file(self) -> None:
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        # The kubelet rewrites the volume when another annotation changes: only a new text is a request.
        before, self._text = self._text, self._read()
        if self._text and self._text != before:
            try:
                self._request = parse(self._text, self._steps)
            except ValueError as error:
                logger.warning("ignored the profile request in %s: %s", self._file, error)

    def _stamped(self) -> tuple[int, ...] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> str:
        if self._file is None:
            return ""
        try:
            # Reading must not block, whatever kind of file it is.
            file = os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return os.read(file, MAX_BYTES).decode(errors="replace").strip()
        except OSError:
            return ""
        finally:
            os.close(file)
