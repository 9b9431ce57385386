"""One localcluster command at a time: the bridge, its addresses and the firewall table exist once on a machine."""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK: Final = Path("/run/trainyard-localcluster.lock")


@contextmanager
def exclusive(path: Path, *, patience: float, busy: str) -> Iterator[None]:
    """Holds the lock file, which the kernel lets go with the process, however that ends.

    Args:
        path: the lock file; it stays, since removing it would race with the next holder.
        patience: seconds to wait for another holder.
        busy: the sentence for when it is still held then.

    Raises:
        LocalClusterError: it stayed busy.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise LocalClusterError(busy) from error
            time.sleep(0.1)
        yield
