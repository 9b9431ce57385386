"""Notice that no rank of this worker does anything, where the program reports no progress: it may hang in a collective. Decides nothing.

Only a suspicion: a rank that spins while it waits for its GPU counts as active, and one may wait for its data on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from trainyard_agent.activity import Activity

DEFAULT_LIMIT_SECONDS = 600.0
"""For how long no rank may do anything, where no limit is set: as long as NCCL waits for a collective."""
LOOK_SECONDS = 10.0
"""How often to look, at most."""
MIN_BYTES_PER_SECOND = 10_000.0
"""Of the network: the probes of the node and the agent's own requests take less."""
NETWORK = Path("/proc/net/dev")


class IdleWatch:
    """Watches the ranks of one attempt."""

    def __init__(
        self,
        limit: float | None,
        clock: Callable[[], float] = time.monotonic,
        network_bytes: Callable[[], int] | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`limit`: seconds for which no rank may do anything; None: ten minutes; 0: for ever."""
        self._limit = DEFAULT_LIMIT_SECONDS if limit is None else limit
        self._clock, self._network_bytes = clock, network_bytes or read_network_bytes
        self._look_seconds = min(look_seconds, self._limit / 5) if self._limit else look_seconds
        self._activity: Activity | None = None
        self._pids: Collection[int] = ()
        self._looked_at, self._bytes, self._traffic_at = clock(), 0, clock()
        self.is_idle = False
        """Whether no rank has done anything for the limit, as last looked at."""

    def update(self, pids: Collection[int]) -> bool:
        """Look at these ranks, if it is time. Return whether `is_idle` has changed."""
        now, before = self._clock(), self.is_idle
        if not self._limit:
            return False
        if self._activity is None or set(pids) != set(self._pids):
            # A rank that exits or starts is no hang.
            self._activity, self._pids = Activity(pids, self._clock, spins_on_gpu=False), pids
            self._looked_at, self._bytes, self._traffic_at = now, self._network_bytes(), now
            self.is_idle = False
        elif now - self._looked_at >= self._look_seconds:
            transferred = self._network_bytes()
            if transferred - self._bytes >= MIN_BYTES_PER_SECOND * (now - self._looked_at):
                self._traffic_at = now
            self._looked_at, self._bytes = now, transferred
            self.is_idle = min(self._activity.idle_seconds(), now - self._traffic_at) >= self._limit
        return self.is_idle != before


def read_network_bytes() -> int:
    """Return the bytes that all interfaces of this pod have received and sent; those of the node where it shares its network."""
    try:
        lines = NETWORK.read_text().splitlines()[2:]
    except OSError:
        return 0
    columns = [line.partition(":")[2].split() for line in lines]
    return sum(int(each[0]) + int(each[8]) for each in columns if len(each) > 8)
