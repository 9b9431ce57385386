"""What is said of an error, and the exit code that it ends a process with. Pure but for `ends`."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 500
"""Characters of an error that are told."""


def first_line(error: BaseException) -> str:
    """The first line of what it says, or the name of its class: torch says a page, and servers may send one."""
    return next(iter(str(error).strip().splitlines()), "")[:LONGEST] or type(error).__name__


@contextmanager
def ends() -> Iterator[None]:
    """An exception that has an `exit_code` ends the process with it, behind its traceback.

    Raises:
        SystemExit: with that code, for such an exception. All others are raised as they are.
    """
    try:
        yield
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        traceback.print_exc()
        raise SystemExit(code) from error
