"""Collect Python's garbage after the same steps on all ranks.

Python collects when enough objects were made: on each rank at another time. Each such pause delays all ranks at their next collective.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COLLECT_EVERY_STEPS = 50
"""Steps between two collections by default. Garbage with cycles lives that long at most, with the tensors that it holds."""


@contextmanager
def collected_every(steps: int) -> Iterator[Callable[[int], None]]:
    """Disable Python's own collections inside, and yield a function to call after each step: it collects after every `steps` steps.

    Objects that exist at the beginning, or after the first step, are frozen. A collection would visit them all: importing torch alone
    makes hundreds of thousands.
    At the end Python collects as before. If the program has frozen objects itself, they stay frozen, and no others are.

    Args:
        steps: the number of steps between two collections, at least 1.
    """
    enabled, freeze = gc.isenabled(), not gc.get_freeze_count()
    gc.collect()
    gc.disable()
    if freeze:
        gc.freeze()

    first = True

    def after(number: int) -> None:
        nonlocal first
        if first or not number % steps:
            gc.collect()
        if first and freeze:
            gc.freeze()
        first = False

    try:
        yield after
    finally:
        if freeze:
            gc.unfreeze()
        if enabled:
            gc.enable()
