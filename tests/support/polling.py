"""Waiting for something outside this process, on the real clock."""

import time
from collections.abc import Callable


def until(holds: Callable[[], object], within: float, what: str) -> float:
    """Wait, and return how long it took. Fails after `within` seconds with the name of what did not come."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within, f"waited {within:.0f} s for {what}"
        time.sleep(0.05)
    return time.monotonic() - began
