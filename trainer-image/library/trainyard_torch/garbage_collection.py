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

    The objects that exist at the beginning are frozen: torch alone makes hundreds of thousands, and a collection would visit all of them.
    At the end Python collects as before. If the program has frozen objects itself, they stay frozen, and no others are.

    Args:
        steps: the number of steps between two collections, at least 1.
    """
    enabled, freeze = gc.isenabled(), not gc.get_freeze_count()
    gc.collect()
    gc.disable()
    if freeze:
        gc.freeze()

    def after(number: int) -> None:
        if not number % steps:
            gc.collect()

    try:
        yield after
    finally:
        if freeze:
            gc.unfreeze()
        if enabled:
            gc.enable()
