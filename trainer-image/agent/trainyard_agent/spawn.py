"""A program is started as a child of this process: in a session of its own, with the signals as they are by default."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence

STANDARD_ERROR = 2
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Handled by this process, and passed on."""
UNFIT = (
    errno.EACCES,
    errno.ENOEXEC,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.E2BIG,
    errno.ENAMETOOLONG,
    errno.ELIBBAD,
)
NEVER: Mapping[int | None, int] = {errno.ENOENT: 127, **dict.fromkeys(UNFIT, 126)}
"""By which error a command can never be started, with a shell's exit code for it. All others may pass."""


def spawn(words: Sequence[str], environment: Mapping[str, str], error: int) -> int:
    """The PID of what runs now. `error`: the descriptor that becomes its standard error. Raises OSError where it cannot be started."""
    try:
        return os.posix_spawnp(
            words[0],
            list(words),
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, error, STANDARD_ERROR),
            ],
            # A session of its own: what is typed at a terminal, and what a rank sends to its group, stays with it.
            setsid=True,
            setsigdef=[*SIGNALS, signal.SIGCHLD, signal.SIGPIPE],
            setsigmask=[],
        )
    except NotImplementedError:
        # A Python that was built against a glibc before 2.26, as uv's and conda's are, knows of no setsid here.
        return _forked(words, environment, error)


def _forked(words: Sequence[str], environment: Mapping[str, str], error: int) -> int:
    import subprocess  # noqa: PLC0415 - few need it, and it takes its time to import

    # A program starts with all signals that were handled here as by default, and with no descriptor that is not inheritable.
    made = subprocess.Popen(
        list(words),
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=error,
        close_fds=False,
        start_new_session=True,
    )
    # It is reaped with all others; this object, once it is let go, would do so too.
    made.returncode = 0
    return made.pid
