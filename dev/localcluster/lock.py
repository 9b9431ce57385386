"""One localcluster command at a time: the bridge, its addresses and the firewall table exist once on a machine."""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster.errors import LocalClusterError
from dev.localcluster.say import complain

if TYPE_CHECKING:
    from collections.abc import Iterator

MOMENT_SECONDS: Final = 2.0
"""Seconds after which a waiting process prints the reason."""
LOCK: Final = Path("/run/trainyard-localcluster.lock")


@contextmanager
def exclusive(path: Path, *, patience: float, busy: str) -> Iterator[None]:
    """Hold the lock file. The kernel releases it when the process exits, in any way.

    Args:
        path: the lock file; it stays, since removing it would race with the next holder.
        patience: seconds to wait for another holder.
        busy: the sentence for when it is still held then.

    Raises:
        LocalClusterError: it stayed busy.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    began, announced = time.monotonic(), False
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                waited = time.monotonic() - began
                if waited >= patience:
                    raise LocalClusterError(busy) from error
                if waited >= MOMENT_SECONDS and not announced:
                    announced = True
                    complain(f"waiting up to {patience:.0f} s for another process that holds {path}")
            time.sleep(0.1)
        yield
