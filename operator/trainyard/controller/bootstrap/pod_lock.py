"""Hold a lock that only one process of a pod can have. Its holder inherits the Lease from earlier holders in the pod.

The kernel keeps the lock as a socket with an abstract name, which all containers of a pod share. It needs no writable
file, and the kernel releases it when the process exits, however that happens. This module decides nothing about the
Lease.
"""

import logging
import secrets
import socket
from dataclasses import dataclass, field

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodLock:
    """The identity of this process in the election, and the earlier identities whose Lease it inherits."""

    prefix: str
    """The common prefix of all identities that have held this lock."""
    lock: socket.socket | None = field(default=None, repr=False)
    """Open as long as the process lives. None: this process inherits nothing."""
    identity: str = field(init=False)
    """The unique identity of this process: an earlier one that is still alive finds that the Lease is no longer its
    own.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", f"{self.prefix}_{secrets.token_hex(4)}")

    def inherits(self, holder: str) -> bool:
        """Return whether this lease holder had the lock before, and so has exited."""
        return self.lock is not None and holder.startswith(f"{self.prefix}_")

    def release(self) -> None:
        """Release the lock. Nothing may be written under this identity afterwards."""
        if self.lock is not None:
            self.lock.close()


def acquire_pod_lock(instance: str, pod_uid: str | None) -> PodLock:
    """Return the lock of this pod, or an identity without a lock if another process holds it. Never raises."""
    if pod_uid is None:
        return PodLock(instance)
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0trainyard-operator/{pod_uid}")
    except (OSError, ValueError) as error:
        lock.close()
        _LOG.warning(f"cannot acquire the pod lock; waiting for lease expiry: {error}")
        return PodLock(instance)
    return PodLock(f"{instance}_{pod_uid}", lock)
