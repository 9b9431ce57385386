"""Let a process on a GPU exit soon after an exception that ends it. Its exit must not wait for a lost device, disk or rank."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from trainyard_torch.checkpoint.timeouts import run_with_timeout

if TYPE_CHECKING:
    from types import TracebackType

EXIT_HANDLERS_SECONDS = 5.0
"""The timeout for the functions that the program registered with `atexit`, all together."""


def exit_soon_after(error: Exception) -> None:
    """Exit with code 1 as soon as this exception has reached the top of the program and its traceback is printed.

    The interpreter's own exit waits without a limit: for threads that read from a lost file server, for NCCL, for CUDA. The agent and the
    other workers learn of the failure when the process has exited. `sys.excepthook` is called as usual, and then the functions of `atexit`, for
    a few seconds. Threads that are no daemons are not joined. A program that handles the exception goes on as usual.
    """
    shown = sys.excepthook

    def show_and_exit(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
        shown(kind, raised, trace)
        if _leads_to(error, raised):
            _exit_now()

    sys.excepthook = show_and_exit


def _leads_to(error: BaseException, raised: BaseException) -> bool:
    """Return whether an exception is this one, or was raised because of it."""
    seen: list[BaseException] = []
    pending: list[BaseException | None] = [raised]
    while pending:
        each = pending.pop()
        if each is error:
            return True
        if each is not None and not any(each is other for other in seen):
            seen.append(each)
            pending += [each.__cause__, each.__context__]
    return False


def _exit_now() -> None:
    with suppress(Exception):
        # All of them write their errors to stderr; the thread is abandoned after the timeout.
        run_with_timeout(EXIT_HANDLERS_SECONDS, atexit._run_exitfuncs)  # noqa: SLF001 - multiprocessing does it as well
    with suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # There may be none, or one without a reader.
        with suppress(Exception):
            stream.flush()
    os._exit(1)
