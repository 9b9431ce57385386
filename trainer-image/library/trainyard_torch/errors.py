"""Summarize errors for logs, and exit with the exit codes that errors carry. Pure except for `exit_with_code`."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_CHARACTERS = 500
"""Length limit of an error summary, in characters."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name. torch and servers may return whole pages."""
    return next(iter(str(error).strip().splitlines()), "")[:MAX_CHARACTERS] or type(error).__name__


@contextmanager
def exit_with_code() -> Iterator[None]:
    """Exit with the `exit_code` of an exception that has one, after its traceback.

    Raises:
        SystemExit: with that code. Other exceptions are raised as they are.
    """
    try:
        yield
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        traceback.print_exc()
        raise SystemExit(code) from error
