"""A pod's place in the election: who has it is the only process of its pod, and so the heir of those that were there before it.

The kernel keeps it: a socket with an abstract name, which is one for all containers of a pod, needs no file that can be
written, and is free again as soon as its process has ended, however that was. Decides nothing about the Lease.
"""

import logging
import secrets
import socket
from dataclasses import dataclass, field

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seat:
    """Under which name this process stands for election, and whose Lease is its own by right."""

    place: str
    """How the names of all that have had this place begin."""
    held: socket.socket | None = field(default=None, repr=False)
    """Open for as long as the process lives. None: this process inherits nothing."""
    name: str = field(init=False)
    """One that no other process has: should an earlier one be alive after all, it finds that the Lease is not its own any more."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.place}_{secrets.token_hex(4)}")

    def inherits(self, holder: str) -> bool:
        """Whether this holder had the same place before, and so has ended."""
        return self.held is not None and holder.startswith(f"{self.place}_")

    def leave(self) -> None:
        """Nothing more is written under this name."""
        if self.held is not None:
            self.held.close()


def take_seat(instance: str, pod_uid: str | None) -> Seat:
    """The one of this pod; where it cannot be had, one of this process's own. Never raises."""
    if pod_uid is None:
        return Seat(instance)
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(f"\0trainyard-operator/{pod_uid}")
    except (OSError, ValueError) as error:
        held.close()
        _LOG.warning(
            f"this pod's place in the election is not to be had, so this process waits like a stranger: {error}"
        )
        return Seat(instance)
    return Seat(f"{instance}_{pod_uid}", held)
