"""Wait for something outside this process, by polling on the real clock."""

import time
from collections.abc import Callable


def until(holds: Callable[[], object], within: float, what: str) -> float:
    """Wait until `holds`, and return the seconds it took. Fails after `within` seconds and names `what`."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within, f"waited {within:.0f} s for {what}"
        time.sleep(0.05)
    return time.monotonic() - began
