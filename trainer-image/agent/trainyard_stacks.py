"""Let a program write the stacks of its threads when the agent asks, whether it reports progress or not.

`sitecustomize.py` calls `register` in each Python program below the agent. It imports little: it runs before every program.
"""

import contextlib
import os

FILE_VARIABLE, DIR_VARIABLE = "TRAINYARD_PROGRESS_FILE", "TRAINYARD_PROGRESS_DIR"
"""As in `trainyard_agent.report`, which would import too much here."""
SUFFIX = ".trace"
"""Of the file beside a rank's progress file. A program that reports progress has another one, for hangs."""
PROGRAM_PREFIX = "program-"
"""Of the file of a program that has no rank: its process ID follows."""


def signal_number() -> int:
    """Return the signal at which a rank writes its stacks and goes on; `trainyard_agent.report` has the next one."""
    import signal  # noqa: PLC0415 - see the module's docstring

    return getattr(signal, "SIGRTMAX", 64) - 3


def program_signal_number() -> int:
    """Return the same for a program without a rank. It differs, so that a launcher does not catch what is for its ranks."""
    return signal_number() - 1


def path() -> str:
    """Return the path of this rank's file; empty where no agent listens or the rank is not known."""
    rank = os.environ.get("RANK", "")
    if own := os.environ.get(FILE_VARIABLE, ""):
        return own + SUFFIX
    folder = os.environ.get(DIR_VARIABLE, "")
    return f"{folder}/{int(rank)}{SUFFIX}" if folder and rank.isascii() and rank.isdecimal() and len(rank) < 10 else ""


def register() -> None:
    """Have Python's faulthandler, which is written in C, write the stacks wherever the program is stuck. Never raises."""
    number, where = signal_number, path()
    if not where and (folder := os.environ.get(DIR_VARIABLE, "")):
        number, where = program_signal_number, f"{folder}/{PROGRAM_PREFIX}{os.getpid()}{SUFFIX}"
    if not where:
        return
    with contextlib.suppress(AttributeError, ImportError, OSError, RuntimeError, ValueError):
        import faulthandler  # noqa: PLC0415 - see the module's docstring

        file = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(number(), file=file, all_threads=True)
