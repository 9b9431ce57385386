"""Where the ranks of a Horovod job meet: a store that the agent of worker 0 serves, in the place of `horovodrun`.

Each rank writes its addresses into the store and reads those of all others (horovod 0.28, `common/gloo/http_store.cc`). It gives up on a
store that does not answer within 1.5 s. So the agents of the other workers wait for the store before they start their ranks.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from trainyard_agent.addresses import port_number
from trainyard_agent.mpi import is_address
from trainyard_agent.ranks import Place, SettingError

RENDEZVOUS_VARIABLE = "TRAINYARD_HOROVOD_RENDEZVOUS"
"""ADDRESS:PORT of the store, which is that of the attempt."""
WAIT_SECONDS, CONNECT_SECONDS, PAUSE_SECONDS = 60.0, 2.0, 0.05
"""For which the store of worker 0 is waited for."""


class Rendezvous(NamedTuple):
    """The address of the store."""

    host: str
    port: int

    @property
    def is_ipv4(self) -> bool:
        """Whether ranks can reach it: Horovod's client knows no other protocol."""
        return ":" not in self.host

    def __str__(self) -> str:  # type: ignore[explicit-override]  # no typing_extensions here
        """Return it as in messages."""
        return f"{self.host}:{self.port}"


def rendezvous(environment: Mapping[str, str]) -> Rendezvous | None:
    """Return where the ranks meet; None where the job is none of Horovod, or the addresses are not known yet. Raises SettingError."""
    text = environment.get(RENDEZVOUS_VARIABLE, "")
    if not text:
        return None
    host, _, number = text.rpartition(":")
    port = port_number(number)
    if not is_address(host) or port is None:
        raise SettingError(f"{RENDEZVOUS_VARIABLE} must be an IP address and a port, got {text!r}")
    return Rendezvous(host, port)


def serves(place: Place) -> bool:
    """Return whether this worker serves the store."""
    return place.worker == 0


def await_store(where: Rendezvous, goes_on: Callable[[], bool], pause: Callable[[float], object]) -> bool:
    """Wait until the store takes connections. Returns whether it does. `goes_on`: whether the attempt does."""
    end = time.monotonic() + WAIT_SECONDS
    while goes_on() and time.monotonic() < end:
        if _answers(where):
            return True
        pause(PAUSE_SECONDS)
    return False


def _answers(where: Rendezvous) -> bool:
    try:
        socket.create_connection(where, timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
