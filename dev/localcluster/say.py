"""The voice of the commands: one line at a time, at once, so that a log shows what is being waited for."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Tells what is being done."""
    print(text, flush=True)  # noqa: T201 - this is where a command line speaks


def complain(text: str) -> None:
    """Tells what is wrong."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - output for the user
