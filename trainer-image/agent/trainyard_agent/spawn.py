"""Start a program as a child of this process: in a session of its own, with default signal handling."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
MAX_FILES = 2**20
NULL_DEVICE = os.makedev(1, 3)
"""The device number of /dev/null in Linux."""
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPWR, signal.SIGRTMIN + 3)
"""Those by which this worker is asked to exit: the kubelet's, and those that images name as STOPSIGNAL, as those with systemd do."""
SIGNALS = (*TERMINATION_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that this process handles, and forwards."""
UNSTARTABLE = (
    errno.EACCES,
    errno.ENOEXEC,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.E2BIG,
    errno.ENAMETOOLONG,
    errno.ELIBBAD,
)
UNSTARTABLE_CODES: Mapping[int | None, int] = {errno.ENOENT: 127, **dict.fromkeys(UNSTARTABLE, 126)}
"""The errors by which a command can never be started, with a shell's exit code for each. All other errors may pass."""


def raise_file_limit() -> None:
    """Raise the soft limit of open files of this process, and so of the programs that it starts, as far as the hard limit allows.

    Some runtimes set 1,024: each rank of a group needs a connection to each other one, and loaders open many files. Not above a million, since
    old programs walk through all numbers of files below the limit.
    """
    try:
        import resource  # noqa: PLC0415 - not every Python has it

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ImportError, OSError, ValueError):
        # The limit stays, and is enough for most.
        return


def has_input() -> bool:
    """Return whether there is a standard input other than /dev/null: the container has `stdin` or `tty`."""
    try:
        return os.fstat(0).st_rdev != NULL_DEVICE
    except OSError:
        return False


def spawn(
    words: Sequence[str],
    environment: Mapping[str, str],
    error: int,
    *,
    shares_input: bool = False,
    output: int | None = None,
) -> int:
    """Start a command and return its PID. Raises OSError where it cannot be started.

    `error`: the descriptor that becomes its standard error; `shares_input`: whether it reads the standard input of this process.
    `output`: the descriptor that becomes its standard output; None: that of this process.
    """
    to_output = () if output is None else ((os.POSIX_SPAWN_DUP2, output, STANDARD_OUTPUT),)
    no_input = () if shares_input else ((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),)
    try:
        return os.posix_spawnp(
            words[0],
            list(words),
            environment,
            file_actions=[*no_input, *to_output, (os.POSIX_SPAWN_DUP2, error, STANDARD_ERROR)],
            # A session of its own: signals of a terminal, and those that a rank sends to its process group, stay with it.
            setsid=True,
            setsigdef=[*SIGNALS, signal.SIGCHLD, signal.SIGPIPE],
            setsigmask=[],
        )
    except NotImplementedError:
        # A Python that was built against a glibc before 2.26, as uv's and conda's are, has no setsid here.
        return _forked(words, environment, error, output, shares_input=shares_input)


def _forked(
    words: Sequence[str], environment: Mapping[str, str], error: int, output: int | None, *, shares_input: bool
) -> int:
    import subprocess  # noqa: PLC0415 - few need it, and it takes its time to import

    # The program gets default signal handling, and no descriptor that is not inheritable.
    made = subprocess.Popen(
        list(words),
        env=environment,
        stdin=None if shares_input else subprocess.DEVNULL,
        stdout=output,
        stderr=error,
        close_fds=False,
        start_new_session=True,
    )
    # The agent reaps all children itself; this object would do so too when it is collected.
    made.returncode = 0
    return made.pid
